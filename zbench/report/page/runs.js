// The table of runs: a filter, sorting by any column, and which run is looked into.

const seconds = (value) => plain(value);
const twice = (value) => (missing(value) ? "–" : value.toFixed(2));
// of iterations of rollouts: each stage by itself
const STAGES = ["reshard", "generate", "score", "train"].map((stage) => [`${stage}, s`, `${stage}_seconds`, seconds])
  .concat(["generate", "score", "train"].map((stage) => [`${stage}, tokens/s`, `${stage}_tokens_per_second`, whole0]))
  .concat([["generation imbalance", "generation_imbalance", twice], ["layout changes", "layout_changes", twice],
    ["layout changes, s", "layout_change_seconds", seconds]]);
const gained = (value, run) => (missing(value) ? "–" : value.toFixed(2) + (run.speedup_told === false ? " ?" : ""));
// title, key of a row, how it is written; words stand left. A column where all rows agree is told above the table.
const COLUMNS = [
  ["system", "system", null], ["workload", "workload", null], ["cluster", "cluster", null], ["model", "model", null],
  ["executor", "executor", null], ["world", "world", null], ["planners", "planners", null], ["mask", "mask", null], ["tokens/s", "tokens_per_second", whole0], ["step, s", "step_seconds", seconds], ...STAGES,
  ["MFU", "mfu", percent], ["speed-up", "speedup", gained],
  ["bound ratio", "bound_ratio", twice], ["NIC use", "nic_utilization", percent],
  ["NIC idle", "nic_idle", percent], ["exposed", "exposed_communication", percent], ["imbalance", "imbalance", twice],
  ["plan, ms", "plan_seconds", (v) => (missing(v) ? "–" : (1e3 * v).toFixed(1))], ["peak, GiB", "peak_bytes", gib], ["host, GiB", "host_bytes", gib], ["dropped", "dropped_choices", percent], ["padded", "padded_rows", percent], ["chosen", "chosen", null],
  ["loss", "loss", (v) => (missing(v) ? "–" : v.toFixed(4))], ["steps", "steps", whole], ["seed", "seed", whole],
  ["tokens/GPU", "tokens_per_gpu", whole], ["status", "state", null],
];
let sorted = { key: null, down: false };
let shown = data.runs;

function whole0(value) {
  return missing(value) ? "–" : Math.round(value).toLocaleString("en");
}

for (const run of data.runs) {
  run.state = run.out_of_memory ? "out of memory" : run.invalid_steps ? `${plural(run.invalid_steps, "step")} invalid` : run.status;
}

const agreed = (key) => new Set(data.runs.map((run) => run[key])).size === 1;
const HIDDEN = new Set(["cluster", "model", "executor", "world", "planners", "mask", "seed", "tokens_per_gpu"].filter(agreed));
const ABSENT = new Set(["loss", "nic_idle", "host_bytes", "dropped_choices", "padded_rows", "chosen", ...STAGES.map(([, key]) => key)].filter((key) => data.runs.every((run) => missing(run[key]) || run[key] === "")));
for (const key of ABSENT) HIDDEN.add(key);
const USUAL = { world: "nominal", planners: "world", mask: "causal" }; // told only where they are others
const VISIBLE = COLUMNS.filter(([, key]) => !HIDDEN.has(key));

// What tells a run from the others, without its system: its workload, whether it was simulated, and what else differs
// among runs that are alike so far.
const TELLING = ["workload", "executor", "cluster", "model", "world", "planners", "mask", "tokens_per_gpu", "seed"].reduce((keys, key) => {
  const kinds = (of) => new Set(data.runs.map((run) => JSON.stringify(of.map((one) => run[one])))).size;
  return kinds([...keys, key]) > kinds(keys) || (key === "executor" && !agreed(key)) ? [...keys, key] : keys;
}, []);

function setting(run) {
  return TELLING.map((key) => (/seed|tokens|world|planners|mask/.test(key) ? `${key} ${run[key]}` : run[key])).join(", ") || run.workload;
}

const named = (run) => `${run.system}, ${setting(run)}`;

function matches(run, words) {
  const text = VISIBLE.map(([, key]) => run[key]).concat(run.cluster, run.model, run.executor, run.id).join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

function select() {
  const words = at("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  shown = data.runs.filter((run) => matches(run, words));
  if (sorted.key) {
    const key = sorted.key, sign = sorted.down ? -1 : 1;
    shown.sort((a, b) => {
      if (missing(a[key]) || missing(b[key])) return missing(a[key]) - missing(b[key]); // what has no value comes last
      return sign * (typeof a[key] === "number" ? a[key] - b[key] : String(a[key]).localeCompare(String(b[key]), "en"));
    });
  }
  at("count").textContent = `${shown.length} of ${plural(data.runs.length, "run")}`;
  table();
  charts();
}

function table() {
  const head = element("tr");
  for (const [title, key, form] of VISIBLE) {
    const cell = element("th", undefined, { scope: "col", class: form ? "number" : "word" });
    const direction = sorted.key === key ? (sorted.down ? "descending" : "ascending") : "none";
    cell.setAttribute("aria-sort", direction);
    const button = element("button", title + { descending: " ▾", ascending: " ▴", none: "" }[direction], { type: "button" });
    button.addEventListener("click", () => sort(key, form));
    cell.append(button);
    head.append(cell);
  }
  const body = element("tbody");
  for (const run of shown) body.append(row(run));
  const top = element("thead");
  top.append(head);
  at("table").replaceChildren(element("caption", "Recorded runs", { class: "skip" }), top, body);
}

function row(run) {
  const line = element("tr", undefined, { "data-run": run.id });
  line.classList.toggle("open", run.id === at("run").value);
  for (const [, key, form] of VISIBLE) {
    const cell = element("td", key === "system" ? undefined : form ? form(run[key], run) : run[key], { class: form ? "number" : "word" });
    if (key === "system") {
      const button = element("button", run.system, { type: "button", title: "Look inside this run" });
      button.addEventListener("click", () => open_run(run.id, true));
      cell.append(button);
    }
    if (key === "speedup" && !missing(run.speedup_low)) {
      cell.title = `95 % interval over batches: ${run.speedup_low.toFixed(2)} to ${run.speedup_high.toFixed(2)}`;
      if (!missing(run.speedup_least)) {
        cell.title += `; over ${run.worlds} worlds: ${run.speedup_least.toFixed(2)} to ${run.speedup_greatest.toFixed(2)}`;
      }
    }
    if (key === "state" && run.state !== "finished") cell.classList.add("bad");
    line.append(cell);
  }
  return line;
}

function sort(key, numeric) {
  sorted = { key, down: sorted.key === key ? !sorted.down : Boolean(numeric) };
  select();
  at("table").querySelectorAll("th button")[VISIBLE.findIndex((column) => column[1] === key)].focus();
}

at("filter").addEventListener("input", select);
