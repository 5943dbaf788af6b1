// The page of `pumice splat view`: asks the server for a picture whenever the camera has moved, one at a time.

const canvas = document.getElementById("picture");
const state = document.getElementById("state");
const START = { yaw: 0, pitch: 12, distance: 2.5 };
const camera = { ...START };
const fingers = new Map();
let asked = false;
let stale = true;

function limit(value, low, high) {
  return Math.min(high, Math.max(low, value));
}

function move(yaw, pitch, nearer) {
  camera.yaw = (camera.yaw + yaw + 360) % 360;
  camera.pitch = limit(camera.pitch + pitch, -85, 85);
  camera.distance = limit(camera.distance * nearer, 0.05, 50);
  stale = true;
  draw();
}

// One request at a time: a slow device gets the newest place of the camera, not all those in between.
async function draw() {
  if (asked || !stale) {
    return;
  }
  asked = true;
  stale = false;
  try {
    const began = performance.now();
    const { yaw, pitch, distance } = camera;
    const answer = await fetch(`frame.png?yaw=${yaw}&pitch=${pitch}&distance=${distance}`);
    if (!answer.ok) {
      const problem = await answer.json();
      throw new Error(`${problem.message}; ${problem.hint}`);
    }
    const image = await createImageBitmap(await answer.blob());
    canvas.width = image.width;
    canvas.height = image.height;
    canvas.getContext("2d").drawImage(image, 0, 0);
    state.className = "";
    state.textContent = `${answer.headers.get("X-Scene")}, ${(performance.now() - began).toFixed(0)} ms`;
  } catch (problem) {
    state.className = "wrong";
    state.textContent = problem instanceof TypeError ? "the server has ended; start pumice splat view again" : problem.message;
  } finally {
    asked = false;
  }
  draw();
}

canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  fingers.set(event.pointerId, [event.clientX, event.clientY]);
});
canvas.addEventListener("pointermove", (event) => {
  const last = fingers.get(event.pointerId);
  if (!last) {
    return;
  }
  const apart = () => {
    const [a, b] = [...fingers.values()];
    return Math.hypot(a[0] - b[0], a[1] - b[1]);
  };
  const before = fingers.size === 2 ? apart() : 0;
  fingers.set(event.pointerId, [event.clientX, event.clientY]);
  if (fingers.size === 2) {
    move(0, 0, before / Math.max(1, apart()));
  } else {
    move((event.clientX - last[0]) * 0.4, (event.clientY - last[1]) * 0.4, 1);
  }
});
for (const name of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(name, (event) => fingers.delete(event.pointerId));
}
canvas.addEventListener(
  "wheel",
  (event) => {
    event.preventDefault();
    move(0, 0, Math.exp(limit(event.deltaY, -100, 100) * 0.002));
  },
  { passive: false },
);
const KEYS = {
  ArrowLeft: [-5, 0, 1],
  ArrowRight: [5, 0, 1],
  ArrowUp: [0, 5, 1],
  ArrowDown: [0, -5, 1],
  "+": [0, 0, 0.9],
  "-": [0, 0, 1 / 0.9],
};
canvas.addEventListener("keydown", (event) => {
  if (event.key === "Home") {
    Object.assign(camera, START);
    move(0, 0, 1);
  } else if (KEYS[event.key]) {
    event.preventDefault();
    move(...KEYS[event.key]);
  }
});
draw();
