// The lanes of the timeline: what each draws, and what it says about a moment.
import { bytes, ms, number } from "../../parts/format.js";
import { FONT } from "../../parts/plot.js";
import { colour } from "../../parts/theme.js";
import { SERIES } from "../../parts/chart.js";
import { CATEGORY } from "../memory.js";
import { lastBefore, valueAt } from "./view.js";

export const KINDS = ["launch", "upload", "download", "copy"];
const TITLE = 17; // height of a lane's title
const GAP = 9; // space below a lane

const UNITS = {
  power: ["power", "W"],
  utilisation: ["load reported by the hardware", "%"],
  frequency: ["clock", "GHz"],
  temperature: ["temperature", "°C"],
  cores: ["processor time", "cores"],
  charge: ["charge", "C"],
};

/** What sources of memory readings measure, for their lanes and buttons. */
const MEMORY = { memory: "memory of the machine", process: "memory of the process", "process-shares": "memory of the process by kind" };

/** All lanes of a run, from the top to the bottom: { id, title, height, hidden, draw(context, box, view), tip(at) }. */
export function lanesOf(data, ops, recorded) {
  const lanes = [];
  if (recorded.length) {
    lanes.push(deviceLane(ops, recorded), hostLane(recorded));
    if (data.memory.op.length) lanes.push(memoryLane(data.memory, recorded));
  }
  const groups = new Map();
  for (const channel of data.sensors) {
    const key = channel.quantity === "memory" ? MEMORY[channel.source] || `memory of ${channel.source}` : channel.quantity;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(channel);
  }
  for (const [key, channels] of groups) lanes.push(sensorLane(key, channels));
  return lanes;
}

export const heightOf = (lanes) => lanes.reduce((sum, lane) => sum + TITLE + lane.height + GAP, 0);

/** Draws the lanes below each other from `top`. Returns where each lies: [{ lane, top, bottom }]. */
export function drawLanes(context, lanes, width, top, view) {
  const places = [];
  let y = top;
  for (const lane of lanes) {
    const box = { left: 0, width, top: y + TITLE, height: lane.height };
    context.font = `12px ${FONT}`;
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    context.fillStyle = colour("soft");
    context.fillText(lane.title, 0, y + 12);
    if (lane.names) drawNames(context, lane.names(), context.measureText(lane.title).width + 14, width, y + 12);
    context.fillStyle = colour("panel");
    context.fillRect(0, box.top, width, box.height);
    context.save();
    context.beginPath();
    context.rect(0, box.top, width, box.height);
    context.clip();
    lane.draw(context, box, view);
    context.restore();
    places.push({ lane, top: y, bottom: box.top + box.height });
    y = box.top + box.height + GAP;
  }
  return places;
}

function drawNames(context, names, left, right, y) {
  let x = left;
  for (const [n, [name, shade]] of names.entries()) {
    const wide = context.measureText(name).width + 28;
    const more = `+${names.length - n}`;
    if (x + wide > right && n > 0) {
      context.fillStyle = colour("soft");
      context.fillText(more, x, y);
      return;
    }
    context.fillStyle = colour(shade);
    context.fillRect(x, y - 9, 9, 9);
    context.fillStyle = colour("ink");
    context.fillText(name, x + 13, y);
    x += wide;
  }
}

const place = (box, [from, to]) => (t) => box.left + ((t - from) / (to - from)) * box.width;

function visible(recorded, [from, to]) {
  return recorded.filter((step) => step.last >= from && step.first <= to);
}

function shadeOf(step, n, ops) {
  return step.kind[n] === 0 ? ops.get(step.op[n])?.phase || "between" : KINDS[step.kind[n]];
}

function nameOf(step, n, ops) {
  const op = ops.get(step.op[n]);
  return step.kind[n] === 0 ? (op ? `${op.path || "(model)"} ${op.op}` : "launch") : KINDS[step.kind[n]];
}

function deviceLane(ops, recorded) {
  const draw = (context, box, view) => {
    const x = place(box, view);
    const steps = visible(recorded, view);
    if (!steps.length) blank(context, box, "No recorded step here. Ops are timed in some steps only; choose one above.");
    context.font = `11px ${FONT}`;
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const step of steps) {
      let drawn = -1;
      for (let n = 0; n < step.started.length; n += 1) {
        const from = x(step.origin + step.started[n] * 1e-6);
        const to = x(step.origin + step.ended[n] * 1e-6);
        if (to < 0 || from > box.width || to < drawn) continue; // Outside, or within a pixel that has a colour already.
        const left = Math.max(from, 0);
        const wide = Math.max(Math.min(to, box.width) - left, 0.6);
        const shade = shadeOf(step, n, ops);
        context.fillStyle = colour(shade);
        context.fillRect(left, box.top, wide > 3 ? wide - 0.6 : wide, box.height);
        drawn = left + 0.6;
        if (wide > 34) label(context, nameOf(step, n, ops), left + 4, box.top + box.height / 2, wide - 8);
      }
    }
  };
  const tip = (at, slack) => {
    const hit = commandAt(recorded, at, slack);
    if (!hit) return null;
    const [step, n] = hit;
    const op = ops.get(step.op[n]);
    const lines = [nameOf(step, n, ops), ["time in this step", ms((step.ended[n] - step.started[n]) * 1e-6, 4)]];
    if (op) {
      if (op.ms !== null) lines.push(["mean of recorded steps", ms(op.ms, 4)]);
      lines.push(["phase", op.phase], ["least traffic", bytes(op.bytes)]);
      if (op.variant) lines.push(op.variant);
    } else if (step.bytes[n]) lines.push(["bytes", bytes(step.bytes[n])]);
    return lines;
  };
  return { id: "device", title: "device", height: 44, draw, tip };
}

export function commandAt(recorded, at, slack) {
  for (const step of recorded) {
    if (at < step.first - slack || at > step.last + slack) continue;
    const moment = (at - step.origin) * 1e6;
    const n = lastBefore(step.started, moment + slack * 1e6);
    for (let k = n; k >= Math.max(n - 3, 0); k -= 1) {
      if (step.ended[k] + slack * 1e6 >= moment) return [step, k];
    }
  }
  return null;
}

function hostLane(recorded) {
  const draw = (context, box, view) => {
    const x = place(box, view);
    for (const step of visible(recorded, view)) {
      const from = x(step.origin + step.begin * 1e-6);
      context.fillStyle = colour("rule");
      context.fillRect(from, box.top, Math.max(x(step.origin + step.end * 1e-6) - from, 1), box.height);
      context.fillStyle = colour("s6");
      for (let n = 0; n < step.host_begin.length; n += 1) {
        const left = x(step.origin + step.host_begin[n] * 1e-6);
        const right = x(step.origin + step.host_end[n] * 1e-6);
        if (right >= 0 && left <= box.width) context.fillRect(left, box.top + 3, Math.max(right - left, 0.5), box.height - 6);
      }
    }
  };
  return { id: "host", title: "host: call of the step (grey), enqueueing", height: 16, draw, tip: () => null };
}

function memoryLane(memory, recorded) {
  const of = new Map(memory.op.map((id, n) => [id, n]));
  const draw = (context, box, view) => {
    const x = place(box, view);
    for (const step of visible(recorded, view)) {
      for (let n = 0; n < step.started.length; n += 1) {
        const at = of.get(step.op[n]);
        if (step.kind[n] !== 0 || at === undefined) continue;
        const left = x(step.origin + step.started[n] * 1e-6);
        const next = n + 1 < step.started.length ? step.started[n + 1] : step.ended[n];
        const wide = Math.max(x(step.origin + next * 1e-6) - left, 0.5) + 0.4;
        if (left > box.width || left + wide < 0) continue;
        let y = box.top + box.height;
        memory.categories.forEach((name, k) => {
          const high = (memory.live[k][at] / (memory.peak_bytes || 1)) * (box.height - 2);
          y -= high;
          context.fillStyle = colour(CATEGORY[name] || "s7");
          context.fillRect(left, y, wide, high + 0.3);
        });
      }
    }
    scaleText(context, box, bytes(memory.peak_bytes));
  };
  const tip = (at, slack) => {
    const hit = commandAt(recorded, at, slack);
    const n = hit ? of.get(hit[0].op[hit[1]]) : undefined;
    if (n === undefined) return null;
    const total = memory.live.reduce((sum, row) => sum + row[n], 0);
    return [`alive: ${bytes(total)}`, ...memory.categories.map((name, k) => [name, bytes(memory.live[k][n])])];
  };
  const names = () => memory.categories.map((name) => [name, CATEGORY[name] || "s7"]);
  return { id: "memory", title: "memory alive", height: 56, draw, tip, names };
}

function sensorLane(key, channels) {
  const [title, unit] = UNITS[key] || [key, channels[0].unit];
  const scale = key === "frequency" ? 1e-9 : 1;
  const shown = (value) => (unit === "B" ? bytes(value) : `${number(value * scale)} ${unit}`);
  const all = channels.flatMap((channel) => channel.v.filter((value) => value !== null));
  const most = Math.max(...all);
  const least = key === "temperature" || key.startsWith("memory") ? Math.min(...all) : Math.min(0, ...all);
  const room = most - least || Math.abs(most) || 1;
  const low = key === "temperature" || key.startsWith("memory") ? least - room * 0.08 : least;
  const high = most + room * 0.08;
  const name = (channel) => `${channel.name}${channel.counter && key === "power" ? " (from its counter)" : ""}`;
  const draw = (context, box, view) => {
    const x = place(box, view);
    const y = (value) => box.top + box.height - ((value - low) / (high - low || 1)) * box.height;
    channels.forEach((channel, n) => line(context, channel, SERIES[n % SERIES.length], x, y, view, box));
    scaleText(context, box, shown(most), low <= 0 ? "0" : shown(least));
  };
  const tip = (at) => {
    const rows = channels.map((channel) => [name(channel), valueAt(channel.t, channel.v, at)]);
    const known = rows.filter(([, value]) => value !== null);
    return known.length ? [title, ...known.slice(0, 12).map(([who, value]) => [who, shown(value)])] : null;
  };
  const names = () => channels.map((channel, n) => [name(channel), SERIES[n % SERIES.length]]);
  const hidden = key === MEMORY.memory || key === MEMORY["process-shares"];
  return { id: key.replaceAll(" ", "-"), title: unit === "B" ? title : `${title} (${unit})`, height: 46, draw, tip, names, hidden };
}

function line(context, channel, shade, x, y, [from, to], box) {
  const first = Math.max(lastBefore(channel.t, from), 0);
  const last = Math.min(lastBefore(channel.t, to) + 1, channel.t.length - 1);
  context.strokeStyle = colour(shade);
  context.fillStyle = colour(shade);
  context.lineWidth = 1.5;
  context.beginPath();
  for (let n = first; n <= last; n += 1) {
    const at = [x(channel.t[n]), y(channel.v[n])];
    if (n === first) context.moveTo(...at);
    else context.lineTo(...at);
  }
  context.stroke();
  if (last - first > box.width / 12) return; // Single readings are marked where there is room.
  for (let n = first; n <= last; n += 1) {
    context.beginPath();
    context.arc(x(channel.t[n]), y(channel.v[n]), 2.2, 0, 2 * Math.PI);
    context.fill();
  }
}

function scaleText(context, box, top, bottom) {
  context.font = `10.5px ${FONT}`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const write = (text, y) => {
    context.globalAlpha = 0.8; // What lies behind the number stays visible.
    context.fillStyle = colour("panel");
    const wide = context.measureText(text).width + 6;
    context.fillRect(box.width - wide, y - 7, wide, 14);
    context.globalAlpha = 1;
    context.fillStyle = colour("soft");
    context.fillText(text, box.width - 3, y);
  };
  write(top, box.top + 8);
  if (bottom) write(bottom, box.top + box.height - 7);
}

function blank(context, box, text) {
  context.font = `12px ${FONT}`;
  context.fillStyle = colour("faint");
  context.textBaseline = "middle";
  context.textAlign = "center";
  context.fillText(text, box.width / 2, box.top + box.height / 2);
}

function label(context, text, x, y, room) {
  let shown = text;
  if (context.measureText(shown).width > room) {
    const last = shown.split(/[. ]/).slice(-1)[0];
    shown = context.measureText(last).width <= room ? last : "";
  }
  if (!shown) return;
  context.fillStyle = colour("on");
  context.fillText(shown, x, y);
}
