// Charts over the runs that the filter leaves.

const MOST_BARS = 40, MOST_LINES = 12;
const groups = (runs, of) => [...new Set(runs.map(of))];

function charts() {
  const over = at("over").value;
  dots("speedup", (run) => gain(run, over), ".2f", 1, "No run here was compared on the same batches.");
  dots("mfu", (run) => run.mfu, ".1%", null, "No run here has this figure.");
  stacked();
  lines();
}

// How many times as fast as `over`, on the same batches: the record's baseline (""), or another system here.
function gain(run, over) {
  if (!over) return run.speedup;
  const other = data.runs.findLast((one) => one.system === over && one.same === run.same);
  return !other || missing(other.step_seconds) || missing(run.step_seconds) ? null : other.step_seconds / run.step_seconds;
}

// Systems down, a mark for every setting: many systems and many settings stay readable.
function dots(id, of, format, reference, none) {
  draw(id, () => {
    const runs = shown.filter((run) => !missing(of(run)));
    if (!runs.length) return none;
    const settings = groups(runs, setting), systems = groups(runs, (run) => run.system);
    const traces = settings.map((name, i) => {
      const mine = runs.filter((run) => setting(run) === name);
      return {
        type: "scatter", mode: "markers", name: cut(name, 80, 44), x: mine.map(of), y: mine.map((run) => run.system),
        marker: { color: numbered(i), symbol: SYMBOLS[i % SYMBOLS.length], size: 9 },
        hovertemplate: `%{y}<br>%{x:${format}}<extra>${name}</extra>`,
      };
    });
    const shapes = reference === null ? [] :
      [{ type: "line", x0: reference, x1: reference, yref: "paper", y0: 0, y1: 1, line: { color: style("--quiet"), dash: "dot", width: 1 } }];
    return [traces, layout({
      height: 110 + 24 * systems.length + 22 * Math.ceil(settings.length / (narrow() ? 1 : 3)), shapes, showlegend: settings.length > 1,
      xaxis: axis({ rangemode: "tozero", tickformat: format === ".1%" ? ".0%" : undefined }),
      yaxis: axis({ autorange: "reversed", categoryorder: "array", categoryarray: systems }),
    })];
  });
}

function limited(id, runs, most, of) {
  at(id).textContent = runs.length > most ? `the first ${most} of ${runs.length} ${of}; filter or sort for others` : "";
  return runs.slice(0, most);
}

function stacked() {
  const unit = at("unit").value;
  const runs = limited("timecount", shown.filter((run) => run.shares), MOST_BARS, "runs");
  draw("shares", () => {
    if (!runs.length) return "No run here has a finished step.";
    const total = (run) => (unit === "share" ? run.shares.reduce((a, b) => a + b, 0) : 1);
    const y = runs.map((_, i) => i);
    const traces = data.shares.map((name, i) => ({
      type: "bar", orientation: "h", name, y, x: runs.map((run) => run.shares[i] / total(run)), customdata: runs.map((run) => [named(run), run.shares[i]]),
      marker: { color: colour(SHARE_COLOURS[i]), pattern: hatched(SHARE_PATTERNS[i]) },
      hovertemplate: `%{customdata[0]}<br>%{customdata[1]:.4g} s${unit === "share" ? ", %{x:.1%}" : ""}<extra>${name}</extra>`,
    })).filter((trace) => trace.x.some((value) => value > 0));
    traces.push({
      type: "scatter", mode: "markers", name: "bound", y, x: runs.map((run) => run.bound_seconds / total(run)),
      marker: { symbol: "line-ns", size: 16, line: { width: 3, color: style("--ink") } },
      hovertemplate: "%{x:.3g}<extra>bound: nothing could be faster</extra>",
    });
    return [traces, layout({
      barmode: "stack", height: 150 + 24 * runs.length + (narrow() ? 150 : 40), bargap: 0.25,
      xaxis: axis({ tickformat: unit === "share" ? ".0%" : undefined, ticksuffix: unit === "share" ? "" : " s" }),
      yaxis: axis({ range: [runs.length - 0.4, -0.6], tickvals: y, ticktext: runs.map((run) => cut(named(run), 60, 22)) }),
    })];
  });
}

// Labels are cut to what there is room for; the hover has all of it.
const cut = (text, wide, slim) => (text.length <= (narrow() ? slim : wide) ? text : text.slice(0, (narrow() ? slim : wide) - 1) + "…");

function lines() {
  const metric = at("metric").value;
  const runs = limited("seriescount", shown.filter((run) => run.series[metric].some((value) => !missing(value))), MOST_LINES, "runs");
  draw("lines", () => {
    if (!runs.length) return "No run here has this figure.";
    const few = Math.max(...runs.map((run) => run.numbers.at(-1) - run.numbers[0])) < 12;
    const traces = runs.map((run, i) => ({
      type: "scatter", mode: "lines+markers", name: cut(named(run), 80, 44), x: run.numbers, y: run.series[metric],
      line: { color: numbered(i), dash: DASHES[Math.floor(i / COLOURS) % DASHES.length] },
      marker: { symbol: SYMBOLS[i % SYMBOLS.length], size: 7 },
      hovertemplate: `step %{x}: %{y:.4g}<extra>${named(run)}</extra>`,
    }));
    return [traces, layout({
      height: 340 + 20 * Math.ceil(runs.length / (narrow() ? 1 : 3)), showlegend: true,
      xaxis: axis({ title: { text: "step" }, tickformat: "d", dtick: few ? 1 : undefined }),
      yaxis: axis({ rangemode: metric === "loss" ? "normal" : "tozero", title: { text: metric.replaceAll("_", " ") } }),
    })];
  });
}

for (const name of data.series) {
  if (data.runs.some((run) => run.series[name].some((value) => !missing(value)))) {
    at("metric").append(element("option", name.replaceAll("_", " "), { value: name }));
  }
}
const baselines = [...new Set(data.runs.filter((run) => !missing(run.speedup)).map((run) => run.baseline))];
if (baselines.length) at("over").append(element("option", `the baseline of each run (${baselines.join(", ")})`, { value: "" }));
for (const name of groups(data.runs, (run) => run.system)) at("over").append(element("option", name, { value: name }));
at("over").addEventListener("change", charts);
at("unit").addEventListener("change", stacked);
at("metric").addEventListener("change", lines);
