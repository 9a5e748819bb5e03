// The timeline of a step: zoomed by dragging, buttons or keys; what is pointed at is told in words.

const view = { of: null, rows: [], tracks: [], from: 0, to: 1, end: 1, cursor: null };
const UNIT = 1e3; // the axis counts milliseconds, events microseconds

function show_timeline(of, node) {
  const key = of && [of, node];
  const fresh = !view.of || view.of !== of || view.node !== node;
  Object.assign(view, { of, node });
  if (of && fresh) {
    view.rows = by_track(of);
    const first = node < 0 ? 0 : node * of.per_node;
    view.tracks = of.tracks.map((_, i) => i).slice(first, node < 0 ? undefined : first + of.per_node);
    view.end = of.begin.reduce((last, begin, i) => Math.max(last, begin + of.length[i]), 0);
    Object.assign(view, { from: 0, to: view.end, cursor: null });
  }
  at("timelinebox").hidden = !key;
  at("event").textContent = "";
  if (of) paint();
}

function paint() {
  draw("timeline", () => {
    const { of, tracks } = view, place = new Map(tracks.map((track, i) => [track, i]));
    const found = marks(of, view.rows, tracks, view.from, view.to, Math.max(at("timeline").clientWidth - 120, 200));
    const traces = of.names.map((name, number) => {
      const mine = found.filter((mark) => mark.name === number);
      return {
        type: "bar", orientation: "h", name, y: mine.map((mark) => place.get(mark.track)), width: 0.86,
        base: mine.map((mark) => mark.begin / UNIT), x: mine.map((mark) => Math.max(mark.end - mark.begin, 1e-6) / UNIT),
        hovertext: mine.map((mark) => told_mark(of, mark).join("<br>")), hovertemplate: "%{hovertext}<extra></extra>",
        marker: { color: colour_of(name), opacity: mine.map((mark) => density(mark) * (/^message/.test(name) ? 0.6 : 1)), line: { width: 0 }, pattern: pattern_of(name) },
      };
    });
    return [traces, layout({
      barmode: "overlay", height: 130 + 17 * tracks.length + (narrow() ? 110 : 30), dragmode: narrow() ? "pan" : "zoom",
      hovermode: "closest", shapes: cursor_shapes(), margin: { l: 10, r: 12, t: 10, b: 45 },
      xaxis: axis({ range: [view.from / UNIT, view.to / UNIT], title: { text: "milliseconds" } }),
      yaxis: axis({ range: [tracks.length - 0.4, -0.6], fixedrange: true, tickvals: tracks.map((_, i) => i), ticktext: tracks.map((track) => of.tracks[track]), showgrid: false, tickfont: { size: 10 } }),
    })];
  });
  listen();
}

// The share of a mark in which something runs; several put together may have gaps.
const density = (mark) => (mark.count === 1 ? 1 : Math.max(0.3, mark.busy / (mark.end - mark.begin)));

let listening = false;
function listen() {
  if (listening) return;
  listening = true;
  at("timeline").on("plotly_relayout", (change) => {
    if (change["xaxis.autorange"]) zoom(0, view.end);
    else if ("xaxis.range[0]" in change) zoom(change["xaxis.range[0]"] * UNIT, change["xaxis.range[1]"] * UNIT);
  });
  at("timeline").on("plotly_hover", (hit) => {
    at("event").textContent = hit.points[0].hovertext.replaceAll("<br>", "\n");
  });
}

function zoom(from, to) {
  if (look(from, to)) paint();
}

// Whether what is to be seen is other than before.
function look(from, to) {
  const least = 1; // microsecond: shorter than any event
  const width = Math.min(Math.max(to - from, least), view.end);
  const begin = Math.min(Math.max(from, 0), view.end - width);
  if (begin === view.from && begin + width === view.to) return false;
  Object.assign(view, { from: begin, to: begin + width });
  return true;
}

function cursor_shapes() {
  if (view.cursor === null) return [];
  const { of, tracks, cursor } = view, y = tracks.indexOf(of.track[cursor]);
  return [{
    type: "rect", x0: of.begin[cursor] / UNIT, x1: (of.begin[cursor] + of.length[cursor]) / UNIT, y0: y - 0.5, y1: y + 0.5,
    line: { color: style("--ink"), width: 2 },
  }];
}

const MOVES = {
  in: (w, middle) => zoom(middle - w / 4, middle + w / 4),
  out: (w, middle) => zoom(middle - w, middle + w),
  left: (w) => zoom(view.from - w / 3, view.to - w / 3),
  right: (w) => zoom(view.from + w / 3, view.to + w / 3),
  all: () => zoom(0, view.end),
};

function move(way) {
  const { of, cursor } = view;
  const middle = cursor === null ? (view.from + view.to) / 2 : of.begin[cursor] + of.length[cursor] / 2;
  MOVES[way](view.to - view.from, middle);
}

// Puts the cursor on another event: the next or the one before in its track, or the one nearest in another track.
function step_to(sideways, down) {
  const { of, rows, tracks } = view, busy = tracks.filter((track) => rows[track].length);
  if (!busy.length) return;
  if (view.cursor === null) view.cursor = rows[busy[0]][0];
  else {
    const track = of.track[view.cursor], index = busy.indexOf(track);
    const row = rows[busy[Math.min(Math.max(index + down, 0), busy.length - 1)]];
    const mine = down ? nearest(row, of.begin[view.cursor]) : row.indexOf(view.cursor) + sideways;
    view.cursor = row[Math.min(Math.max(mine, 0), row.length - 1)];
  }
  const begin = of.begin[view.cursor], end = begin + of.length[view.cursor], width = view.to - view.from;
  const outside = begin < view.from || end > view.to;
  if (outside && look((begin + end - width) / 2, (begin + end + width) / 2)) paint();
  else Plotly.relayout("timeline", { shapes: cursor_shapes() }); // the bars stay as they are
  at("event").textContent = told(of, view.cursor).join("\n");
}

function nearest(row, begin) {
  let best = 0;
  row.forEach((i, place) => {
    if (Math.abs(view.of.begin[i] - begin) < Math.abs(view.of.begin[row[best]] - begin)) best = place;
  });
  return best;
}

const KEYS = {
  ArrowRight: () => step_to(1, 0), ArrowLeft: () => step_to(-1, 0), ArrowDown: () => step_to(0, 1), ArrowUp: () => step_to(0, -1),
  "+": () => move("in"), "=": () => move("in"), "-": () => move("out"), 0: () => move("all"),
};
at("timeline").addEventListener("keydown", (event) => {
  if (!KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  KEYS[event.key]();
});
for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => move(button.dataset.zoom));
