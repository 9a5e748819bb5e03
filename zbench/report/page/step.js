// A step of a run: what the record says of it, its timeline, and which sequence lies where.

function open_run(id, jump) {
  at("run").value = id;
  const run = data.runs.find((one) => one.id === id);
  at("number").replaceChildren(...run.numbers.map((number) => {
    const here = `${id}/${number}` in data.steps;
    return element("option", here ? number : `${number} (not in this page)`, { value: number });
  }));
  const first = run.numbers.find((number) => `${id}/${number}` in data.steps);
  if (first !== undefined) at("number").value = first;
  for (const line of document.querySelectorAll("tr[data-run]")) line.classList.toggle("open", line.dataset.run === id);
  open_step();
  if (jump) {
    at("step").scrollIntoView();
    at("run").focus({ preventScroll: true });
  }
}

function open_step() {
  const run = data.runs.find((one) => one.id === at("run").value), number = at("number").value;
  const found = data.steps[`${run.id}/${number}`];
  for (const id of ["ranks", "nics"]) at(id).closest("figure").hidden = !found;
  at("curvesbox").hidden = !found || !found.record.curves;
  for (const id of ["planbox", "nodelabel"]) at(id).hidden = !found || !found.homes;
  critical(found);
  at("facts").replaceChildren();
  at("again").textContent = again(run, number, found);
  if (!found) return show_timeline(null, -1);
  facts(run, found.record);
  if (found.homes) nodes(run);
  open_node();
}

function again(run, number, found) {
  if (!run.numbers.length) return "This run has no finished step.";
  if (!found) return `Step ${number} is not in this page: python -m zbench.report ${run.out} --steps ${number}`;
  const traced = Boolean(found.timeline && found.timeline.measured);
  if (found.problem) return `Only what the record says${traced ? ", and the step's own trace" : ""}: ${found.problem}.`;
  if (traced) return "The timeline is this step's own trace, measured. Which sequence lies where was made again from the record's configuration.";
  const why = found.untraced ? `: ${found.untraced}` : " (trace=FILE traces a run's first step)";
  const undrawn = found.undrawn ? ` There is no timeline: ${found.undrawn}.` : "";
  const measured = run.simulated ? "" : ` The run itself was MEASURED, without a trace that could be shown${why}: the timeline is what the simulator makes of the same plans.`;
  const other = found.again_seconds === undefined ? "" :
    ` It now simulates in ${plain(found.again_seconds)} s, the record says ${plain(found.record.seconds)} s: sources have changed since.`;
  return `Timeline and plan are not in the record: they were made again from its configuration and simulated on ${run.place}.${measured}${undrawn}${other}`;
}

function facts(run, of) {
  const add = (name, value) => at("facts").append(wrapped(name, value));
  add("step", `${plain(of.seconds)} s`);
  add("bound", `${plain(of.bound_seconds)} s (${percent(of.bound_seconds / of.seconds)})`);
  add("tokens", whole(of.tokens));
  add("sequences", whole(of.num_sequences));
  add("longest", `${whole(of.max_length)} tokens`);
  add("micro-batches", whole(of.num_micro_batches));
  add("memory of the fullest GPU", `${gib(Math.max(...of.peak_bytes))} of ${gib(of.capacity_bytes)} GiB`);
  if (of.host_bytes.length) add("host memory of the fullest node", `${gib(Math.max(...of.host_bytes))} GiB`);
  if (!missing(of.dropped)) add("choices of experts dropped", percent(of.dropped));
  if (!missing(of.padded)) add("experts' rows that are padding", percent(of.padded));
  if (of.chosen) add("chosen", of.chosen);
  add("inside nodes", bytes(of.nvlink_bytes));
  for (const [index, notes] of of.notes.entries()) {
    const words = Object.entries(notes).map(([name, value]) => `${name} ${typeof value === "number" ? plain(value) : value}`);
    if (words.length) add(`plan ${index}`, words.join(", "));
  }
  if (!of.valid) add("valid", "no: the machine was too busy for its ranks' work or messages; no figure has this step");
  add("commit", run.commit ? run.commit.slice(0, 10) + (run.dirty ? ", changed" : "") : "unknown");
}

// The critical path, as zbench critical tells it.
function critical(found) {
  const of = found && found.critical;
  at("criticalbox").hidden = !of;
  if (!of) return;
  at("criticalhint").textContent = of.head;
  at("criticallist").replaceChildren();
  for (const one of of.sheets) {
    const words = new Set([...one.columns.keys()].filter((i) => ["operation", "template", "waited for"].includes(one.columns[i])));
    at("criticallist").append(element("h3", one.title), sheet(one, words));
  }
}

function wrapped(name, value) {
  const box = element("div");
  box.append(element("dt", name), element("dd", value));
  return box;
}

function nodes(run) {
  const found = data.steps[`${run.id}/${at("number").value}`], gpus = found.record.peak_bytes.length;
  const each = found.record.nic_tx_bytes.length, count = Math.max(run.num_nodes, 1);
  const before = at("node").value;
  at("node").replaceChildren(element("option", "all", { value: -1 }),
    ...Array.from({ length: count }, (_, i) => element("option", i, { value: i })));
  at("node").value = before && Number(before) < count ? before : gpus + 2 * each > 80 || (narrow() && count > 1) ? 0 : -1;
  at("nodelabel").hidden = count === 1;
}

function open_node() {
  const run = data.runs.find((one) => one.id === at("run").value);
  const found = data.steps[`${run.id}/${at("number").value}`];
  const node = found.homes ? Number(at("node").value) : -1, count = Math.max(run.num_nodes, 1);
  const part = (of) => (node < 0 ? [0, of] : [(node * of) / count, ((node + 1) * of) / count]);
  rank_bars(found.record, part(found.record.peak_bytes.length));
  nic_bars(found.record, part(found.record.nic_tx_bytes.length));
  if (found.record.curves) curves(found.record.curves, part(found.record.nic_tx_bytes.length));
  at("timelinetitle").textContent = `Timeline of GPUs and NICs (${found.timeline && found.timeline.measured ? "measured" : "simulated"})`;
  at("timelinehint").textContent = timeline_words(found.timeline);
  show_timeline(found.timeline ?? null, node);
  if (!found.homes) return;
  at("microlabel").hidden = found.homes.length === 1;
  const before = at("micro").value;
  at("micro").replaceChildren(...found.homes.map((_, i) => element("option", i, { value: i })));
  at("micro").value = before && Number(before) < found.homes.length ? before : 0;
  plan_bars(found.homes[Number(at("micro").value)], part(found.homes[0].owners));
}

function timeline_words(of) {
  if (!of) return "";
  if (of.measured) {
    const message = "a message is drawn from when it was posted, or the one before it on a link was there, to when its receiver found it arrived";
    if (of.gpus) return `Measured: every operation as the ranks noted it, a compute from when its operands were there; ${message}.`;
    return `Measured: as the ranks noted it. Linear modules fill what is empty; ${message}. On a GPU, moments are those at which work was asked for.`;
  }
  const some = of.layers === of.of_layers ? "All layers are played" : `${of.layers} of the model's ${of.of_layers} layers are played`;
  const shared = of.layers === of.of_layers ? "" : " Parameters, gradients and the optimizer are those of a model of so many layers.";
  return `Simulated. ${some}, forward and backward; they are alike.${shared} Every operation of the step is a bar.`;
}

const range = ([from, to]) => Array.from({ length: to - from }, (_, i) => from + i);

function rank_bars(of, part) {
  draw("ranks", () => {
    const ranks = range(part);
    const traces = data.shares.map((name, i) => ({
      type: "bar", orientation: "h", name, y: ranks, x: ranks.map((rank) => of.shares[i][rank]),
      marker: { color: colour(SHARE_COLOURS[i]), pattern: hatched(SHARE_PATTERNS[i]) },
      hovertemplate: `rank %{y}: %{x:.4g} s<extra>${name}</extra>`,
    })).filter((trace) => trace.x.some((value) => value > 0));
    return [traces, layout({
      barmode: "stack", height: 190 + 13 * ranks.length, bargap: 0.15,
      shapes: [{ type: "line", x0: of.bound_seconds, x1: of.bound_seconds, yref: "paper", y0: 0, y1: 1, line: { color: style("--ink"), width: 2, dash: "dash" } }],
      xaxis: axis({ ticksuffix: " s", title: { text: "dashed: the bound" } }), yaxis: axis({ autorange: "reversed", title: { text: "rank" }, tickformat: "d" }),
    })];
  });
}

function nic_bars(of, part) {
  draw("nics", () => {
    const nics = range(part);
    if (!of.nic_tx_bytes.some((size) => size > 0)) return "Nothing crosses a NIC.";
    const traces = [["sends", of.nic_tx_bytes, 0, ""], ["receives", of.nic_rx_bytes, 1, "/"]].map(([name, sizes, i, shape]) => ({
      type: "bar", orientation: "h", name, y: nics, x: nics.map((nic) => sizes[nic]),
      marker: { color: colour(i), pattern: hatched(shape) },
      hovertemplate: `NIC %{y} ${name} %{x:.4s}B<extra></extra>`,
    }));
    return [traces, layout({ height: 150 + 24 * nics.length, xaxis: axis({ tickformat: "~s", ticksuffix: "B" }), yaxis: axis({ autorange: "reversed", title: { text: "NIC" }, tickformat: "d" }) })];
  });
}

function curves(of, [from, to]) {
  draw("curves", () => {
    const names = Object.keys(of.lines).filter((name) => Number(name.split(" ")[1]) >= from && Number(name.split(" ")[1]) < to);
    const traces = names.map((name, i) => ({
      type: "scatter", mode: "lines", name, x: of.lines[name].map((_, moment) => 1e3 * of.interval * moment), y: of.lines[name],
      line: { color: numbered(i), dash: DASHES[Math.floor(i / COLOURS) % DASHES.length], width: 1.5, shape: "hv" },
      hovertemplate: `%{x:.1f} ms: %{y:.0%}<extra>${name}</extra>`,
    }));
    return [traces, layout({ height: 320 + 20 * Math.ceil(names.length / (narrow() ? 2 : 6)),
      xaxis: axis({ title: { text: "milliseconds" } }), yaxis: axis({ tickformat: ".0%", rangemode: "tozero", title: { text: "of its rate" } }) })];
  });
}

function plan_bars(of, [from, to]) {
  draw("plan", () => {
    const rows = of.rows.filter(([home]) => home >= from && home < to), order = new Map();
    for (const [, seq] of rows) if (seq >= 0 && of.sequences[seq][1] > 1 && !order.has(seq)) order.set(seq, order.size);
    const painted = ([, seq], i) => (order.has(seq) ? numbered(order.get(seq)) : style(i % 2 ? "--whole" : "--whole2"));
    const words = ([home, seq, tokens, count]) => {
      if (seq < 0) return `${plural(count, "sequence")} on ${of.owner} ${home}, the shortest there<br>${plural(tokens, "token")}`;
      const [length, owners] = of.sequences[seq];
      return `sequence ${seq}: ${plural(length, "token")}<br>${owners > 1 ? `cut over ${owners} ${of.owner}s, ${whole(tokens)} on ${of.owner} ${home}` : `whole on ${of.owner} ${home}`}`;
    };
    const bars = (mine, color, shape) => ({
      type: "bar", orientation: "h", y: mine.map(([home]) => home), x: mine.map((row) => row[2]), hovertext: mine.map(words),
      hovertemplate: "%{hovertext}<extra></extra>", marker: { color, line: { width: 0.5, color: style("--ground") }, pattern: hatched(shape) },
    });
    const apart = rows.filter(([, seq]) => seq >= 0);
    const traces = [bars(apart, apart.map(painted), ""), bars(rows.filter(([, seq]) => seq < 0), style("--rest"), "/")];
    return [traces, layout({ barmode: "stack", height: 90 + 17 * (to - from), bargap: 0.15, showlegend: false,
      xaxis: axis({ title: { text: "tokens at home" } }), yaxis: axis({ autorange: "reversed", title: { text: of.owner }, tickformat: "d" }) })];
  });
}
