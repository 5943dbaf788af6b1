// The order in which batches take samples: a function of the seed and the epoch alone, the same as in Python.

const MASK = 0xffffffffffffffffn;
const IV = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const SIGMA = [
  "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "9057fe24bd1e6ac3",
  "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0",
].map((row) => [...row].map((digit) => parseInt(digit, 16)));

function rotateRight(x: bigint, n: bigint): bigint {
  return ((x >> n) | (x << (64n - n))) & MASK;
}

/** BLAKE2b of up to 128 bytes without a key, `size` bytes of it (RFC 7693). */
export function blake2b(message: Uint8Array, size: number): Uint8Array {
  if (message.length > 128) throw new RangeError("one block of BLAKE2b has 128 bytes");
  const block = new Uint8Array(128);
  block.set(message);
  const words = new BigUint64Array(block.buffer);
  const h = [...IV];
  h[0] = h[0]! ^ 0x01010000n ^ BigInt(size);
  const v = [...h, ...IV];
  v[12] = v[12]! ^ BigInt(message.length);
  v[14] = v[14]! ^ MASK;
  const mix = (a: number, b: number, c: number, d: number, x: bigint, y: bigint): void => {
    v[a] = (v[a]! + v[b]! + x) & MASK;
    v[d] = rotateRight(v[d]! ^ v[a]!, 32n);
    v[c] = (v[c]! + v[d]!) & MASK;
    v[b] = rotateRight(v[b]! ^ v[c]!, 24n);
    v[a] = (v[a]! + v[b]! + y) & MASK;
    v[d] = rotateRight(v[d]! ^ v[a]!, 16n);
    v[c] = (v[c]! + v[d]!) & MASK;
    v[b] = rotateRight(v[b]! ^ v[c]!, 63n);
  };
  for (let round = 0; round < 12; round++) {
    const s = SIGMA[round % 10]!;
    for (let i = 0; i < 8; i++) {
      // Four columns, then four diagonals.
      const turn = i < 4 ? 0 : 1;
      const at = (row: number): number => row * 4 + ((i + row * turn) % 4);
      mix(at(0), at(1), at(2), at(3), words[s[2 * i]!]!, words[s[2 * i + 1]!]!);
    }
  }
  const found = new BigUint64Array(8);
  for (let i = 0; i < 8; i++) found[i] = h[i]! ^ v[i]! ^ v[i + 8]!;
  return new Uint8Array(found.buffer).slice(0, size);
}

/** The numbers below `count` in the order that belongs to a seed and an epoch: those of sorted splitmix64 hashes. */
export function permutation(count: number, seed: number, epoch: number): Uint32Array {
  const hashed = blake2b(new TextEncoder().encode(`${seed}/${epoch}`), 8);
  const key = new BigUint64Array(hashed.buffer)[0]!;
  const keys = new BigUint64Array(count);
  for (let i = 0; i < count; i++) {
    let x = (BigInt(i + 1) * 0x9e3779b97f4a7c15n + key) & MASK;
    x = ((x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
    x = ((x ^ (x >> 27n)) * 0x94d049bb133111ebn) & MASK;
    keys[i] = x ^ (x >> 31n);
  }
  const order = Uint32Array.from({ length: count }, (_, i) => i);
  return order.sort((a, b) => (keys[a]! < keys[b]! ? -1 : keys[a]! > keys[b]! ? 1 : a - b));
}
