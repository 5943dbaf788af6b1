// Signs receipts with a key of this browser: the file that `pumice receipt verify` takes.

import { DeviceError } from "./core/errors.js";
import { base64, receiptJson } from "./model/receipt.js";

const PAYLOAD_TYPE = "application/vnd.in-toto+json";
const STATEMENT_TYPE = "https://in-toto.io/Statement/v1";
const PREDICATE_TYPE = "urn:pumice:receipt:v1";
const DATABASE = "pumice-receipts";
const STORE = "keys";

/** The signed receipt, one line, to be saved as it is. Its key is made once, stays in this browser, and cannot be read out. */
export async function signReceipt(receipt: object): Promise<string> {
  const { outputs } = receipt as { outputs: { role: string; sha256: string }[] };
  const statement = {
    _type: STATEMENT_TYPE,
    subject: outputs.map(({ role, sha256 }) => ({ name: role, digest: { sha256 } })),
    predicateType: PREDICATE_TYPE,
    predicate: receipt,
  };
  const payload = new TextEncoder().encode(receiptJson(statement));
  const { privateKey, publicKey } = await ownKey();
  const signature = await crypto.subtle.sign("Ed25519", privateKey, preAuthentication(payload));
  const signed = { keyid: await keyText(publicKey), sig: base64(new Uint8Array(signature)) };
  return `${receiptJson({ payloadType: PAYLOAD_TYPE, payload: base64(payload), signatures: [signed] })}\n`;
}

/** The public key of this browser, which others trust with `pumice receipt keys trust KEY`. */
export async function receiptKey(): Promise<string> {
  return keyText((await ownKey()).publicKey);
}

/** What DSSE signs: type and payload with their lengths, so that neither can run into the other. */
function preAuthentication(payload: Uint8Array): Uint8Array<ArrayBuffer> {
  const head = new TextEncoder().encode(`DSSEv1 ${PAYLOAD_TYPE.length} ${PAYLOAD_TYPE} ${payload.length} `);
  const found = new Uint8Array(head.length + payload.length);
  found.set(head);
  found.set(payload, head.length);
  return found;
}

async function keyText(key: CryptoKey): Promise<string> {
  return `ed25519:${base64(new Uint8Array(await crypto.subtle.exportKey("raw", key)))}`;
}

async function ownKey(): Promise<CryptoKeyPair> {
  const database = await opened();
  try {
    const kept = (await settled(database.transaction(STORE).objectStore(STORE).get("own"))) as CryptoKeyPair | undefined;
    if (kept) return kept;
    const made = (await crypto.subtle.generateKey("Ed25519", false, ["sign", "verify"])) as CryptoKeyPair;
    await settled(database.transaction(STORE, "readwrite").objectStore(STORE).put(made, "own"));
    return made;
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new DeviceError(`this browser cannot sign receipts: ${why}`, "use one that has Ed25519, such as Chrome from version 137 on");
  } finally {
    database.close();
  }
}

async function opened(): Promise<IDBDatabase> {
  const request = indexedDB.open(DATABASE, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(STORE);
  return settled(request);
}

function settled<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
