// A timeline of the run: commands of recorded steps, memory and sensors on one axis, with zoom and pan.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { html } from "../../html.js";
import { Canvas } from "../../parts/canvas.js";
import { Figure } from "../../parts/figure.js";
import { ms } from "../../parts/format.js";
import { FONT } from "../../parts/plot.js";
import { Missing } from "../../parts/shell.js";
import { colour } from "../../parts/theme.js";
import { hide, show } from "../../parts/tooltip.js";
import { drawLanes, heightOf, lanesOf } from "./lanes.js";
import { clamped, moved, ticks, zoomed } from "./view.js";

const OVERVIEW = 24;
const AXIS = 24;
const TOP = OVERVIEW + AXIS + 10;

/** Recorded steps with the first and the last moment of each, in ms. */
function withSpans(recorded) {
  return recorded.map((step) => {
    const last = Math.max(step.end, ...step.ended.slice(-8));
    return { ...step, first: step.origin, last: step.origin + last * 1e-6 };
  });
}

export function Timeline({ data, ops }) {
  const recorded = useMemo(() => withSpans(data.recorded), [data]);
  const all = useMemo(() => lanesOf(data, ops, recorded), [data, ops]);
  const whole = useMemo(() => wholeOf(data, recorded), [data]);
  const first = recorded.find((step) => step.label === "typical") || recorded[0];
  const around = (step) => { const pad = (step.last - step.first) * 0.02; return clamped([step.first - pad, step.last + pad], whole); };
  const [view, setView] = useState(first ? around(first) : whole);
  const [off, setOff] = useState(() => new Set(all.filter((lane) => lane.hidden).map((lane) => lane.id)));
  const lanes = all.filter((lane) => !off.has(lane.id));
  const places = useRef([]);
  if (!all.length) return html`<${Missing}>There is no timeline: ${data.no_ops || "no step was recorded"}, and no sensor was read during the steps.</${Missing}>`;

  const draw = (context, width) => {
    drawOverview(context, width, data, recorded, view, whole);
    drawAxis(context, width, view, OVERVIEW + AXIS);
    places.current = drawLanes(context, lanes, width, TOP, view);
  };
  const toggle = (id) => setOff((old) => { const next = new Set(old); if (!next.delete(id)) next.add(id); return next; });
  const height = TOP + heightOf(lanes);

  return html`<${Figure} id="timeline" title="Commands, memory and sensors on one axis" legend=${recorded.length ? LEGEND : []}
      note=${note(data, recorded)}>
    <div class="controls noprint">
      ${recorded.length > 0 && html`<label>Step <select data-step-choice onChange=${(e) => setView(around(recorded[Number(e.target.value)]))}>
        ${recorded.map((step, n) => html`<option value=${n} selected=${step === first}>${step.step}${step.label ? ` (${step.label})` : ""}${data.graphs.length > 1 ? ` ${step.graph}` : ""}</option>`)}
      </select></label>`}
      <button type="button" data-zoom="in" title="Zoom in" onClick=${() => setView((v) => zoomed(v, (v[0] + v[1]) / 2, 0.5, whole))}>+</button>
      <button type="button" data-zoom="out" title="Zoom out" onClick=${() => setView((v) => zoomed(v, (v[0] + v[1]) / 2, 2, whole))}>−</button>
      <button type="button" data-zoom="whole" onClick=${() => setView(whole)}>Whole run</button>
      <span class="range" data-range=${view.join(" ")}>${ms(view[1] - view[0])} shown</span>
      <span class="chips">${all.map((lane) => html`<button type="button" data-lane=${lane.id} aria-pressed=${!off.has(lane.id)} onClick=${() => toggle(lane.id)}>${lane.title.split(/[:(]/)[0].trim()}</button>`)}</span>
    </div>
    <${Surface} draw=${draw} height=${height} drawn=${[view, off, data]} view=${view} setView=${setView} whole=${whole} places=${places} />
  </${Figure}>`;
}

const LEGEND = [["forward", "forward"], ["backward", "backward"], ["update", "update"], ["upload", "upload"], ["download", "download"], ["copy", "copy"]];

function note(data, recorded) {
  const kept = recorded.length ? `${recorded.length} recorded steps are in this file. ` : `Ops have no times: ${data.no_ops} `;
  const sensors = data.sensors.length ? "Dots are single readings of a sensor; between them the line is straight." : "No sensor was read during the steps.";
  return `${kept}Drag to move, Ctrl + wheel or pinch to zoom, double-click to zoom in; arrows, + and − work too. ${sensors}`;
}

function wholeOf(data, recorded) {
  const ends = data.steps.end;
  const last = Math.max(ends.length ? ends[ends.length - 1] : 0, ...recorded.map((step) => step.last), 1e-3);
  return [Math.min(0, ...recorded.map((step) => step.first)), last];
}

/** The canvas with what the mouse, fingers and keys do. */
function Surface({ draw, height, drawn, view, setView, whole, places }) {
  const box = useRef(null);
  const fingers = useRef(new Map());
  const at = (event) => { const place = box.current.getBoundingClientRect(); return { x: event.clientX - place.left, y: event.clientY - place.top, width: place.width }; };
  const moment = ({ x, width }) => view[0] + (x / width) * (view[1] - view[0]);

  useEffect(() => {
    const wheel = (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
      event.preventDefault();
      const place = box.current.getBoundingClientRect();
      const turn = event.deltaY || event.deltaX;
      setView((v) => {
        const where = v[0] + ((event.clientX - place.left) / place.width) * (v[1] - v[0]);
        return event.shiftKey ? moved(v, (turn / 500) * (v[1] - v[0]), whole) : zoomed(v, where, Math.exp(turn / 400), whole);
      });
    };
    box.current.addEventListener("wheel", wheel, { passive: false });
    return () => box.current?.removeEventListener("wheel", wheel);
  }, [whole]);

  const down = (event) => { fingers.current.set(event.pointerId, at(event)); box.current.setPointerCapture?.(event.pointerId); };
  const up = (event) => fingers.current.delete(event.pointerId);
  const move = (event) => {
    const now = at(event);
    const old = fingers.current.get(event.pointerId);
    if (!old) return hover(event, now);
    hide();
    const others = [...fingers.current].filter(([id]) => id !== event.pointerId);
    if (others.length) {
      const other = others[0][1];
      const factor = Math.abs(old.x - other.x) / Math.max(Math.abs(now.x - other.x), 1);
      setView((v) => zoomed(v, v[0] + (other.x / now.width) * (v[1] - v[0]), factor, whole));
    } else if (old.y < OVERVIEW) {
      const centre = whole[0] + (now.x / now.width) * (whole[1] - whole[0]);
      setView((v) => clamped([centre - (v[1] - v[0]) / 2, centre + (v[1] - v[0]) / 2], whole));
    } else setView((v) => moved(v, ((old.x - now.x) / now.width) * (v[1] - v[0]), whole));
    fingers.current.set(event.pointerId, { ...now, y: old.y });
    return undefined;
  };
  const hover = (event, now) => {
    const hit = places.current.find((one) => now.y >= one.top && now.y <= one.bottom);
    const slack = ((view[1] - view[0]) / now.width) * 1.5;
    const lines = hit?.lane.tip(moment(now), slack);
    return lines ? show(event.clientX, event.clientY, [...lines, ["at", ms(moment(now), 6)]]) : hide();
  };
  const click = (event) => {
    const now = at(event);
    if (now.y >= OVERVIEW) return;
    const centre = whole[0] + (now.x / now.width) * (whole[1] - whole[0]);
    setView((v) => clamped([centre - (v[1] - v[0]) / 2, centre + (v[1] - v[0]) / 2], whole));
  };
  const key = (event) => {
    const turns = { ArrowLeft: (v) => moved(v, (v[0] - v[1]) / 8, whole), ArrowRight: (v) => moved(v, (v[1] - v[0]) / 8, whole), "+": (v) => zoomed(v, (v[0] + v[1]) / 2, 0.5, whole), "-": (v) => zoomed(v, (v[0] + v[1]) / 2, 2, whole), 0: () => whole };
    if (!turns[event.key]) return;
    event.preventDefault();
    setView(turns[event.key]);
  };
  return html`<div class="surface" ref=${box} tabindex="0" aria-label="Timeline; arrows move, + and - zoom" onPointerDown=${down} onPointerUp=${up}
      onPointerCancel=${up} onPointerMove=${move} onPointerLeave=${hide} onClick=${click} onKeyDown=${key}
      onDblClick=${(e) => setView((v) => zoomed(v, moment(at(e)), 0.4, whole))}>
    <${Canvas} draw=${draw} height=${height} drawn=${drawn} label="Timeline" />
  </div>`;
}

function drawOverview(context, width, data, recorded, view, whole) {
  const x = (t) => ((t - whole[0]) / (whole[1] - whole[0])) * width;
  context.fillStyle = colour("panel");
  context.fillRect(0, 0, width, OVERVIEW);
  context.fillStyle = colour("rule");
  data.steps.recorded.forEach((flag, n) => {
    if (flag) context.fillRect(x(data.steps.begin[n]), 0, Math.max(x(data.steps.end[n]) - x(data.steps.begin[n]), 1.5), OVERVIEW);
  });
  context.fillStyle = colour("soft");
  for (const step of recorded) context.fillRect(x(step.first), 4, Math.max(x(step.last) - x(step.first), 1.5), OVERVIEW - 8);
  context.strokeStyle = colour("link");
  context.lineWidth = 2;
  const left = Math.min(Math.max(x(view[0]), 1), width - 4);
  context.strokeRect(left, 1, Math.max(Math.min(x(view[1]), width - 1) - left, 3), OVERVIEW - 2);
}

function drawAxis(context, width, view, bottom) {
  const { at, step } = ticks(view[0], view[1], width / 110);
  const seconds = view[1] > 5000 && step >= 1;
  const decimals = Math.max(0, -Math.floor(Math.log10(seconds ? step / 1000 : step) + 1e-9));
  context.font = `11px ${FONT}`;
  context.textBaseline = "alphabetic";
  context.fillStyle = colour("soft");
  context.strokeStyle = colour("rule");
  context.lineWidth = 1;
  for (const t of at) {
    const x = ((t - view[0]) / (view[1] - view[0])) * width;
    context.beginPath();
    context.moveTo(x, bottom - 4);
    context.lineTo(x, bottom + 4);
    context.stroke();
    context.textAlign = x < 30 ? "left" : x > width - 30 ? "right" : "center";
    context.fillText(`${(seconds ? t / 1000 : t).toFixed(Math.min(decimals, 6))} ${seconds ? "s" : "ms"}`, x, bottom - 7);
  }
}
