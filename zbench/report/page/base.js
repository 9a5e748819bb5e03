// What the other parts share: the data, the theme, colours, numbers as text, and drawing.

const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);

// Okabe and Ito's palette, told apart with any colour vision (jfly.uni-koeln.de/color): black and white left out, yellow
// darker on white, the blues lighter on black.
const [BLUE, ORANGE, GREEN, PURPLE, SKY, RED, YELLOW, GREY] = [0, 1, 2, 3, 4, 5, 6, 7];
const LIGHT = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a800", "#9aa5b1"];
const DARK = ["#3f93dd", "#e69f00", "#00b386", "#cc79a7", "#a6dcff", "#e8702a", "#f0e442", "#8691a0"];
const COLOURS = 7; // without grey, for what is numbered
const colour = (number) => (document.documentElement.dataset.theme === "dark" ? DARK : LIGHT)[number];
const numbered = (i) => colour(i % COLOURS);

// A colour and a share of it, the rest being another.
function mixed(one, other, share) {
  const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const rest = parts(other);
  return `rgb(${parts(one).map((value, i) => Math.round(share * value + (1 - share) * rest[i])).join(",")})`;
}
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "star", "x", "triangle-down"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
// As data.shares: what computes is plain, what waits is hatched.
const SHARE_COLOURS = [BLUE, SKY, ORANGE, RED, RED, PURPLE, GREEN, GREY, YELLOW, ORANGE, RED, SKY, ORANGE, GREY, ORANGE, PURPLE, PURPLE, SKY, GREEN, BLUE, YELLOW, YELLOW, YELLOW, GREY];
const SHARE_PATTERNS = ["", "", "/", "\\", "x", "-", "", ".", "", "", "", "-", "x", "x", "/", "-", "|", "/", "/", "/", "/", "x", ".", ""];

// Bars that stand beside others, told apart by colour and hatching.
const hatched = (shape) => ({ shape, fillmode: "overlay", fgcolor: style("--ground"), size: 6, solidity: 0.25 });

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const narrow = () => window.innerWidth < 700;

function element(tag, words, attributes = {}) {
  const made = document.createElement(tag);
  if (words !== undefined) made.textContent = words;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// A table of words and numbers; words: which columns have words.
function sheet(of, words) {
  const head = element("tr"), top = element("thead"), body = element("tbody"), table = element("table");
  const kind = (i) => ({ class: words.has(i) ? "word" : "number" });
  for (const [i, title] of of.columns.entries()) head.append(element("th", title, { scope: "col", ...kind(i) }));
  for (const row of of.rows) {
    const line = element("tr");
    for (const [i, cell] of row.entries()) line.append(element("td", cell, kind(i)));
    body.append(line);
  }
  top.append(head);
  table.append(element("caption", of.title, { class: "skip" }), top, body);
  const scroll = element("div", undefined, { class: "scroll", tabindex: "0", role: "region", "aria-label": of.title });
  scroll.append(table);
  return scroll;
}

const missing = (value) => value === null || value === undefined;
const plain = (value, digits = 4) =>
  missing(value) ? "–" : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
const percent = (value) => (missing(value) ? "–" : (100 * value).toFixed(1) + " %");
const whole = (value) => (missing(value) ? "–" : Number(value).toLocaleString("en"));
const gib = (value) => (missing(value) ? "–" : (value / 2 ** 30).toFixed(1));
const plural = (count, one) => `${whole(count)} ${one}${count === 1 ? "" : "s"}`;

function bytes(value) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (value >= size) return plain(value / size, 4) + " " + unit;
  return whole(value) + " bytes";
}

function time(microseconds) {
  if (Math.abs(microseconds) >= 1e6) return plain(microseconds / 1e6) + " s";
  return Math.abs(microseconds) >= 1e3 ? plain(microseconds / 1e3) + " ms" : plain(microseconds) + " µs";
}

// -- drawing --------------------------------------------------------------------------------------
const CONFIG = {
  responsive: true,
  displaylogo: false,
  showSendToCloud: false, // nothing of a record leaves this page
  plotlyServerURL: "",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
};
const drawn = new Map(); // id -> how to draw it again in another theme

function axis(more = {}) {
  return { gridcolor: style("--grid"), zerolinecolor: style("--line"), linecolor: style("--line"), automargin: true, ...more };
}

function layout(more = {}) {
  return {
    paper_bgcolor: style("--ground"),
    plot_bgcolor: style("--ground"),
    font: { color: style("--ink"), family: "system-ui, sans-serif", size: 12 },
    hoverlabel: { align: "left", bgcolor: style("--raised"), bordercolor: style("--line"), font: { color: style("--ink") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 11 }, traceorder: "normal" },
    margin: { l: 10, r: 12, t: 10, b: 40 },
    dragmode: narrow() ? false : "zoom",
    ...more,
  };
}

// make: () => [traces, layout], or a sentence where there is nothing to draw.
function draw(id, make) {
  drawn.set(id, make);
  const place = at(id), made = make();
  if (typeof made === "string") {
    Plotly.purge(place);
    place.replaceChildren(element("p", made, { class: "empty" }));
    return;
  }
  place.querySelector(".empty")?.remove();
  Plotly.react(place, made[0], made[1], { ...CONFIG, displayModeBar: narrow() ? false : "hover" });
}

function redraw() {
  for (const [id, make] of drawn) draw(id, make);
}

// -- theme ----------------------------------------------------------------------------------------
const prefers = window.matchMedia("(prefers-color-scheme: dark)");
let picked = null; // what the button says, else what the reader's system prefers

function retheme() {
  const dark = picked === null ? prefers.matches : picked;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  at("theme").textContent = dark ? "Light" : "Dark";
  redraw();
}

at("theme").addEventListener("click", () => {
  picked = document.documentElement.dataset.theme !== "dark";
  retheme();
});
prefers.addEventListener("change", retheme);
