// Asks the server for newer data. A page has `poll` (an address that returns its payload) if a server made it.
const EVERY_MS = 2000;
const SOON_MS = 100; // while the server has files to read (`waiting`)
const SHARE = 0.1; // The server may work for this page at most this share of the time, because it may disturb a run.

/** Calls `draw` with new data as long as the data says where to ask. */
export function follow(data, draw) {
  if (!data.poll) return;
  let latest = data;
  const ask = async () => {
    const begun = performance.now();
    try {
      const answer = await fetch(latest.poll, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      latest = await answer.json();
      draw(latest);
    } catch {
      draw({ ...latest, unreachable: true });
    }
    const rest = latest.waiting ? SOON_MS : Math.max(EVERY_MS, (performance.now() - begun) / SHARE);
    if (latest.poll) setTimeout(ask, rest);
  };
  setTimeout(ask, latest.waiting ? SOON_MS : EVERY_MS);
}
