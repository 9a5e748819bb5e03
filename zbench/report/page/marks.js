// A timeline's events as bars: those of the window that is shown, tiny neighbours of a kind as one.

// Kinds of a track differ; those of other tracks may have the same colour.
const KINDS = {
  attend: BLUE, linear: SKY, head: GREEN, optimizer: YELLOW, waiting: GREY, forward: BLUE, backward: SKY, // on GPUs
  matmul: SKY, elementwise: GREEN, // of whole steps
  kv: RED, dkv: ORANGE, q: PURPLE, dq: YELLOW, o: GREEN, do: SKY, message: RED, // messages of attention's plans
  keys: RED, queries: PURPLE, attention: GREEN, gradients: ORANGE, // and of whole steps, by their first word
  gather: PURPLE, reduce: ORANGE, // of parameters, of gradients
};
const SMALLEST = 2; // pixels: narrower bars are put together

// A backward is paler than its forward; a message is told apart by its tensor, where that is known.
function colour_of(name) {
  const kind = KINDS[name.split(": ").at(-1).split(" ")[0]] ?? KINDS.message;
  return / backward/.test(name) ? mixed(colour(kind), style("--ground"), 0.66) : colour(kind);
}
const pattern_of = (name) => hatched(/^waiting/.test(name) ? "/" : /inside the node/.test(name) ? "\\" : "");

// Events of every track in order of time: arrays of numbers of events.
function by_track(of) {
  const rows = of.tracks.map(() => []);
  of.track.forEach((track, i) => rows[track].push(i));
  for (const row of rows) row.sort((a, b) => of.begin[a] - of.begin[b]);
  return rows;
}

// tracks: those shown. from, to: microseconds. pixels: the width they have.
function marks(of, rows, tracks, from, to, pixels) {
  const least = (SMALLEST * (to - from)) / pixels, out = [];
  for (const track of tracks) {
    const open = new Map(); // kind -> a mark that may grow
    for (const i of rows[track]) {
      const begin = of.begin[i], end = begin + of.length[i], name = of.name[i];
      if (end < from || begin > to) continue;
      const last = open.get(name);
      if (last && of.length[i] < least && begin - last.end < least) {
        last.end = Math.max(last.end, end);
        last.busy += of.length[i];
        last.count += 1;
        continue;
      }
      const mark = { track, name, first: i, begin, end, busy: of.length[i], count: 1 };
      out.push(mark);
      if (of.length[i] < least) open.set(name, mark);
      else open.delete(name);
    }
  }
  return out;
}

function told_list(list) {
  const rest = list.num_blocks - list.blocks.length;
  const blocks = `block${list.num_blocks === 1 ? "" : "s"} ${list.blocks.join(", ")}${rest ? ` and ${whole(rest)} more` : ""}`;
  const of = list.sequences.map(([seq, length, here]) => `sequence ${seq} (${whole(here)} of its ${whole(length)} tokens)`);
  const others = list.num_sequences - list.sequences.length;
  return [`${blocks}: ${plural(list.tokens, "token")} of`, ...of, ...(others ? [`and ${plural(others, "sequence")} more`] : [])];
}

// A place that messages go from or to: a GPU, or a node's host memory after them.
function place(of, number) {
  return number < (of.gpus ?? Infinity) ? `GPU ${number}` : `host memory ${number - of.gpus}`;
}

// One event in words, a line each.
function told(of, i) {
  const where = (of.layer[i] < 0 ? "" : `, layer ${of.layer[i]}`) + (of.micro[i] < 0 ? "" : `, micro-batch ${of.micro[i]}`);
  const out = [`${of.names[of.name[i]]}${where}`,
    `${of.tracks[of.track[i]]}: ${time(of.length[i])} from ${time(of.begin[i])} on`];
  if (of.route[i].length) out.push(`${bytes(of.bytes[i])} from ${of.route[i].map((number) => place(of, number)).join(" to ")}`);
  else if (of.bytes[i]) out.push(bytes(of.bytes[i]));
  const lists = of.what[i].map((number) => of.lists[number]);
  if (lists.length === 1) out.push(...told_list(lists[0]));
  if (lists.length === 2) {
    if (of.what[i][0] === of.what[i][1]) out.push("queries and keys:", ...told_list(lists[0]));
    else out.push("queries:", ...told_list(lists[0]), "keys:", ...told_list(lists[1]));
  }
  return out;
}

function told_mark(of, mark) {
  if (mark.count === 1) return told(of, mark.first);
  return [`${whole(mark.count)} × ${of.names[mark.name]}`,
    `${of.tracks[mark.track]}: ${time(mark.busy)} in ${time(mark.end - mark.begin)} from ${time(mark.begin)} on`, "zoom in to see each"];
}
