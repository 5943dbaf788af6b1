"use strict";
// Places the boxes of a small graph in ranks from top to bottom, with few crossings and straight long edges.

// boxes: [{id, w, h}] in an order in which operands come first; edges: [[from, to]].
// Gives {place: id → {x, y, w, h}, paths: [{from, to, d}], width, height}.
function layered(boxes, edges, { gapX = 22, gapY = 26 } = {}) {
  const items = new Map(boxes.map((b) => [b.id, { ...b, rank: 0, up: [], down: [] }]));
  for (const [from, to] of edges) {
    items.get(from).down.push(items.get(to));
    items.get(to).up.push(items.get(from));
  }
  for (const b of boxes) {
    const item = items.get(b.id);
    for (const next of item.down) next.rank = Math.max(next.rank, item.rank + 1);
  }
  // What needs nothing stands right above its first user.
  for (const item of items.values()) {
    if (!item.up.length && item.down.length) item.rank = Math.min(...item.down.map((d) => d.rank)) - 1;
  }
  const { ranks, chains } = withBends([...items.values()], edges, items);
  for (let round = 0; round < 12; round++) sweep(ranks, round % 2 === 0);
  positions(ranks, gapX);
  const heights = ranks.map((r) => Math.max(...r.map((i) => i.h), 0));
  let y = 0;
  ranks.forEach((r, k) => {
    for (const i of r) i.y = y;
    y += heights[k] + gapY;
  });
  const left = Math.min(...ranks.flat().map((i) => i.x - i.w / 2));
  const right = Math.max(...ranks.flat().map((i) => i.x + i.w / 2));
  for (const i of ranks.flat()) i.x -= left;
  const place = new Map([...items.values()].map((i) => [i.id, { x: i.x - i.w / 2, y: i.y, w: i.w, h: i.h }]));
  return {
    place,
    paths: chains.map((c) => ({ from: c[0].id, to: c[c.length - 1].id, d: path(c, heights) })),
    width: right - left,
    height: y - gapY,
  };
}

// Long edges get a softcap_slope in every rank they pass, so that they take room there.
function withBends(list, edges, items) {
  const depth = Math.max(...list.map((i) => i.rank)) + 1;
  const ranks = Array.from({ length: depth }, () => []);
  for (const i of list) [i.above, i.below] = [[], []];
  for (const i of list) ranks[i.rank].push(i);
  const chains = edges.map(([from, to]) => {
    const chain = [items.get(from)];
    for (let k = chain[0].rank + 1; k < items.get(to).rank; k++) {
      const softcap_slope = { w: 10, h: 0, rank: k, softcap_slope: true, above: [], below: [] };
      ranks[k].push(softcap_slope);
      chain.push(softcap_slope);
    }
    chain.push(items.get(to));
    for (let k = 1; k < chain.length; k++) {
      chain[k - 1].below.push(chain[k]);
      chain[k].above.push(chain[k - 1]);
    }
    return chain;
  });
  ranks.forEach((r) => r.forEach((i, k) => (i.at = k)));
  return { ranks, chains };
}

// One pass that sorts every rank by the mean place of its neighbours in the rank before.
function sweep(ranks, down) {
  const order = down ? ranks.keys() : [...ranks.keys()].reverse();
  for (const k of order) {
    for (const i of ranks[k]) {
      const near = down ? i.above : i.below;
      i.key = near.length
        ? near.reduce((sum, n) => sum + (n.at + 0.5) / ranks[n.rank].length, 0) / near.length
        : (i.at + 0.5) / ranks[k].length;
    }
    ranks[k].sort((a, b) => a.key - b.key);
    ranks[k].forEach((i, at) => (i.at = at));
  }
}

function positions(ranks, gap) {
  for (const r of ranks) {
    let x = 0;
    for (const i of r) {
      i.x = x + i.w / 2;
      x += i.w + gap;
    }
    for (const i of r) i.x -= (x - gap) / 2;
  }
  for (let round = 0; round < 24; round++) {
    const down = round % 2 === 0;
    const order = down ? [...ranks.keys()] : [...ranks.keys()].reverse();
    for (const k of order) settle(ranks[k], down, gap);
  }
}

// The places nearest to the means of the neighbours that keep the order and the gaps: neighbours that collide move as one block.
function settle(rank, down, gap) {
  const blocks = [];
  let offset = 0;
  let before = null;
  for (const i of rank) {
    offset += before ? before.w / 2 + gap + i.w / 2 : 0;
    before = i;
    const near = down ? i.above : i.below;
    const wish = near.length ? near.reduce((sum, n) => sum + n.x, 0) / near.length : i.x;
    const weight = i.softcap_slope ? 3 : near.length ? 2 : 0.2;
    blocks.push({ sum: (wish - offset) * weight, weight, members: [[i, offset]] });
    while (blocks.length > 1) {
      const [a, b] = blocks.slice(-2);
      if (a.sum / a.weight <= b.sum / b.weight) break;
      blocks.splice(-2, 2, { sum: a.sum + b.sum, weight: a.weight + b.weight, members: a.members.concat(b.members) });
    }
  }
  for (const b of blocks) for (const [i, at] of b.members) i.x = b.sum / b.weight + at;
}

function path(chain, heights) {
  let d = `M ${chain[0].x} ${chain[0].y + chain[0].h}`;
  let [x, y] = [chain[0].x, chain[0].y + chain[0].h];
  chain.slice(1).forEach((next) => {
    const middle = (y + next.y) / 2;
    d += ` C ${x} ${middle}, ${next.x} ${middle}, ${next.x} ${next.y}`;
    [x, y] = [next.x, next.y];
    if (next.softcap_slope) {
      y = next.y + heights[next.rank];
      d += ` L ${x} ${y}`;
    }
  });
  return d;
}
