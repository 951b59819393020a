// The lineage graph as far as it is unfolded.

import type { LineageEvent, LineageRead, LineageStep } from "./data";
import { count, counted } from "./words";

export type Way = "backward" | "forward";

/** Events of a port, or a read action: one box of the graph. */
export interface Item {
  /** The same for the same events, whichever step has found them. */
  id: string;
  title: string;
  figures: string;
  /** The first ones, which are followed. */
  events: LineageEvent[];
  /** How many there are. */
  many: number;
  read: LineageRead | null;
  done: Partial<Record<Way, LineageStep>>;
}

export interface Unfolded {
  items: Map<string, Item>;
  edges: Map<string, [string, string]>;
}

export const NOTHING: Unfolded = { items: new Map(), edges: new Map() };

/** The event with which a graph begins. Its id is the one that the server gives a box of this event alone. */
export function rootOf(port: string, event: number): Item {
  return itemOf(`${port} 1 ${event}`, port, [{ port, event, records: null, code: 0, about: null }], 1, null, false);
}

/** Where the next step does not begin from all of its events: of how many. */
export function followed(item: Item): string {
  return item.events.length < item.many ? `of its first ${counted(item.events.length, "event")}` : "";
}

/** Input Sets that hold events of a box and have made nothing of them, as far as a step forward has said it. */
export function heldIn(item: Item): { text: string; isWrong: boolean } {
  const of = (use: string) =>
    (item.done.forward?.unmade ?? []).filter((one) => one.use === use).reduce((sum, one) => sum + one.input_sets_in_all, 0);
  const [aside, waiting] = [of("aside"), of("waiting")];
  const parts = [aside > 0 && `${counted(aside, "Input Set")} in quarantine`, waiting > 0 && `${counted(waiting, "Input Set")} waiting`];
  return { text: parts.filter(Boolean).join(", "), isWrong: aside > 0 };
}

function itemOf(id: string, port: string, events: LineageEvent[], many: number, records: number | null, cut: boolean): Item {
  const [first, last] = [events[0]!.event, events.at(-1)!.event];
  const extent = `${count(many)}${cut ? " or more" : ""} ${many === 1 ? "event" : "events"} from ${first}${many === events.length ? ` to ${last}` : ""}`;
  return {
    id,
    title: many === 1 ? `${port} ${first}` : port,
    figures: [many > 1 && extent, records !== null && counted(records, "record")].filter(Boolean).join(", "),
    events,
    many,
    read: null,
    done: {},
  };
}

function readOf(read: LineageRead): Item {
  const title = `read ${read.operator}.${read.connection} ${read.action}`;
  const figures = read.records === null ? "" : counted(read.records, "record");
  // Names may have dots in them: the title is not unique.
  return { id: joined(["read", read.operator, read.connection, String(read.action)]), title, figures, events: [], many: 0, read, done: {} };
}

/** One id of several names, with no sign in it that a selector of CSS would take for its own. */
const joined = (names: string[]): string => names.map(encodeURIComponent).join(" ");

/** The graph with what a step from one of its boxes has found. */
export function grown(before: Unfolded, from: string, way: Way, step: LineageStep): Unfolded {
  const items = new Map(before.items);
  const edges = new Map(before.edges);
  const item = items.get(from)!;
  const records = step.roots.reduce((sum, one) => sum + (one.records ?? 0), 0);
  const root = item.many === 1 ? itemOf(from, step.roots[0]!.port, step.roots, 1, records, false) : item;
  items.set(from, { ...root, done: { ...item.done, [way]: step } });
  const found = step.ports.map((one) => itemOf(one.id, one.port, one.first, one.events, one.records, step.cut));
  for (const one of [...found, ...step.reads.map(readOf)]) {
    if (!items.has(one.id)) items.set(one.id, one);
    const edge: [string, string] = way === "forward" ? [from, one.id] : [one.id, from];
    edges.set(joined(edge), edge);
  }
  return { items, edges };
}

/** All steps so far but the one with which a graph begins: a box is found by boxes before it, so they can be taken again in
 * this order. */
export const stepsOf = (graph: Unfolded): string[] =>
  [...graph.items.values()]
    .flatMap((item) => Object.keys(item.done).map((way) => `${way} ${item.id}`))
    .filter((step, place) => place > 0 || !step.startsWith("backward"));

export const stepNamed = (step: string): [string, Way] => [step.replace(/^\S+ /, ""), step.startsWith("forward") ? "forward" : "backward"];
