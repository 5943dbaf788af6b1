// The service worker: keeps this version of the page for offline use. The runtime keeps the model.
//
// A version is taken as a whole: its files are cached under its digest at installation, and served from there until
// the next version takes over, which is when the last tab of this one is closed, or when a person asks for it.

declare const self: ServiceWorkerGlobalScope;
declare const BUILD_FILES: string[];
declare const BUILD_DIGEST: string;

const folder = new URL("./", self.location.href);
// A site may have several folders with models, each with a page and a worker of its own.
const MINE = `pumice-page ${folder.pathname} `;
const SHELL = MINE + BUILD_DIGEST;
const shellUrls = new Set(BUILD_FILES.map((name) => new URL(name, folder).href));
const page = new URL("index.html", folder).href;
/** How long a start waits for the network before the kept page is shown. */
const PATIENCE_MS = 3000;

self.addEventListener("install", (event) => event.waitUntil(install()));
self.addEventListener("activate", (event) => event.waitUntil(activate()));
self.addEventListener("message", (event) => {
  if (event.data === "take over") void self.skipWaiting();
});
self.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET") return;
  const url = new URL(request.url);
  url.search = url.hash = "";
  if (request.mode === "navigate" && (url.href === folder.href || url.href === page)) event.respondWith(start(request));
  else if (shellUrls.has(url.href)) event.respondWith(shell(url.href, request));
});

async function install(): Promise<void> {
  const cache = await caches.open(SHELL);
  // All or nothing, and past the HTTP cache, which may hold files of the version before.
  await cache.addAll([...shellUrls].map((url) => new Request(url, { cache: "no-cache" })));
}

async function activate(): Promise<void> {
  for (const name of await caches.keys()) {
    if (name.startsWith(MINE) && name !== SHELL) await caches.delete(name);
  }
  await self.clients.claim();
}

async function shell(url: string, request: Request): Promise<Response> {
  return (await (await caches.open(SHELL)).match(url)) ?? fetch(request);
}

/**
 * The page of this version. The network is asked nevertheless: addresses such as http://127.0.0.1:8000 serve one site
 * today and another tomorrow, which must not be hidden by a page that this browser kept.
 */
async function start(request: Request): Promise<Response> {
  const kept = await (await caches.open(SHELL)).match(page);
  if (!kept) return fetch(request);
  const late = new Promise<null>((resolve) => setTimeout(() => resolve(null), PATIENCE_MS));
  const fresh = await Promise.race([fetch(request).catch(() => null), late]);
  if (!fresh || fresh.status >= 500) return kept;
  if (fresh.ok && (await fresh.clone().text()).includes('name="generator" content="Pumice"')) return kept;
  if (fresh.ok || fresh.status === 404 || fresh.status === 410) {
    await self.registration.unregister();
    await caches.delete(SHELL);
  }
  return fresh; // What asks for a password or leads elsewhere is none of these, and is shown.
}

export {};
