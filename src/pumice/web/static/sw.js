"use strict";
(() => {
  // <define:BUILD_FILES>
  var define_BUILD_FILES_default = ["app.webmanifest", "cache.js", "icon-192.png", "icon-512.png", "icon.svg", "index.html", "page.css", "page.js", "pumice.js", "sign.js", "text.js", "train_session.js", "worker.js"];

  // page/sw.ts
  var folder = new URL("./", self.location.href);
  var MINE = `pumice-page ${folder.pathname} `;
  var SHELL = MINE + "638a2c4356e2baa9";
  var shellUrls = new Set(define_BUILD_FILES_default.map((name) => new URL(name, folder).href));
  var page = new URL("index.html", folder).href;
  var PATIENCE_MS = 3e3;
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
  async function install() {
    const cache = await caches.open(SHELL);
    await cache.addAll([...shellUrls].map((url) => new Request(url, { cache: "no-cache" })));
  }
  async function activate() {
    for (const name of await caches.keys()) {
      if (name.startsWith(MINE) && name !== SHELL) await caches.delete(name);
    }
    await self.clients.claim();
  }
  async function shell(url, request) {
    return await (await caches.open(SHELL)).match(url) ?? fetch(request);
  }
  async function start(request) {
    const kept = await (await caches.open(SHELL)).match(page);
    if (!kept) return fetch(request);
    const late = new Promise((resolve) => setTimeout(() => resolve(null), PATIENCE_MS));
    const fresh = await Promise.race([fetch(request).catch(() => null), late]);
    if (!fresh || fresh.status >= 500) return kept;
    if (fresh.ok && (await fresh.clone().text()).includes('name="generator" content="Pumice"')) return kept;
    if (fresh.ok || fresh.status === 404 || fresh.status === 410) {
      await self.registration.unregister();
      await caches.delete(SHELL);
    }
    return fresh;
  }
})();
