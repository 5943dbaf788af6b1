// Draws the icons of the page: a stone with pores. `node icons.mjs` writes icon.svg, icon-192.png and icon-512.png.
// PNGs are drawn by area sampling over the same circles, with a palette of few shades: some kilobytes each.
import { writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { crc32, deflateSync } from "node:zlib";

const PAGE = join(dirname(fileURLToPath(import.meta.url)), "page");
const BACK = [11, 98, 196];
const STONE = [246, 247, 249];
// In a square of 100; all of it within the circle of radius 40 that a mask leaves.
const BODY = [
  [50, 50, 25],
  [37, 53, 20],
  [63, 47, 21],
  [55, 60, 20],
  [44, 40, 18],
];
const PORES = [
  [42, 44, 6],
  [57, 39, 4],
  [62, 53, 7],
  [45, 60, 5],
  [33, 55, 4],
  [54, 66, 3.4],
  [50, 51, 2.6],
  [71, 43, 3],
];

const inside = (circles, x, y) => circles.some(([cx, cy, r]) => (x - cx) ** 2 + (y - cy) ** 2 <= r * r);
const hex = (colour) => `#${colour.map((c) => c.toString(16).padStart(2, "0")).join("")}`;
const circles = (list, colour) =>
  `<g fill="${hex(colour)}">${list.map(([x, y, r]) => `<circle cx="${x}" cy="${y}" r="${r}"/>`).join("")}</g>`;

function svg() {
  const square = `<rect width="100" height="100" rx="22" fill="${hex(BACK)}"/>`;
  const drawn = square + circles(BODY, STONE) + circles(PORES, BACK);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 100">${drawn}</svg>\n`;
}

/** A PNG with four bits a pixel, which number 16 shades from the back to the stone. */
function png(size) {
  const rows = [];
  const grid = 4;
  for (let y = 0; y < size; y++) {
    const row = Buffer.alloc(1 + size / 2);
    for (let x = 0; x < size; x++) {
      let hits = 0;
      for (let k = 0; k < grid * grid; k++) {
        const px = ((x + ((k % grid) + 0.5) / grid) * 100) / size;
        const py = ((y + (Math.floor(k / grid) + 0.5) / grid) * 100) / size;
        hits += inside(BODY, px, py) && !inside(PORES, px, py);
      }
      row[1 + (x >> 1)] |= Math.round((15 * hits) / (grid * grid)) << (x % 2 ? 0 : 4);
    }
    rows.push(row);
  }
  const header = Buffer.alloc(13);
  header.writeUInt32BE(size, 0);
  header.writeUInt32BE(size, 4);
  header.set([4, 3, 0, 0, 0], 8);
  const palette = Buffer.from(
    [...Array(16).keys()].flatMap((k) => BACK.map((c, i) => Math.round(c + ((STONE[i] - c) * k) / 15))),
  );
  const parts = [
    ["IHDR", header],
    ["PLTE", palette],
    ["IDAT", deflateSync(Buffer.concat(rows), { level: 9 })],
    ["IEND", Buffer.alloc(0)],
  ];
  return Buffer.concat([
    Buffer.from([137, 80, 78, 71, 13, 10, 26, 10]),
    ...parts.map(([name, data]) => chunk(name, data)),
  ]);
}

function chunk(name, data) {
  const body = Buffer.concat([Buffer.from(name, "latin1"), data]);
  const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32BE(data.length);
  sum.writeUInt32BE(crc32(body));
  return Buffer.concat([length, body, sum]);
}

writeFileSync(join(PAGE, "icon.svg"), svg());
for (const size of [192, 512]) writeFileSync(join(PAGE, `icon-${size}.png`), png(size));
