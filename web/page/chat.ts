// The chat with a model that runs in this tab; the conversation stays in this browser.

import { ChatView } from "./conversation.js";
import { signReceipt, type Model } from "../src/index.js";

/** Shows a conversation with a causal model in `root`. */
export function mountChat(root: HTMLElement, model: Model): void {
  new ChatView(root, model, {
    store: `pumice-chat:${model.info.name}`,
    sign: signReceipt,
    welcome: ({ info }) => {
      const does = info.chat ? "Ask it anything." : "It has no chat template: it goes on with your text.";
      return `${info.name} runs on this device. ${does} What you type stays here.`;
    },
  });
}
