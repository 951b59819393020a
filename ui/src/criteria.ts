// What an event is looked for by: how it is asked for, and what is posted for the text of a person.

export type By = "event" | "input_set" | "at" | "where";

interface Kind {
  label: string;
  input: "number" | "text" | "datetime-local";
  hint: string;
}

export const KINDS: Record<By, Kind> = {
  event: { label: "number", input: "number", hint: "" },
  input_set: { label: "Input Set", input: "text", hint: "" },
  at: { label: "time (UTC), from then on", input: "datetime-local", hint: "" },
  where: { label: "values", input: "text", hint: 'column=value, ...; "a value, with a comma"' },
};

export type Wanted = { event: number } | { input_set: string } | { at: number } | { where: Record<string, string> };

/** What a person has typed cannot be asked for. */
export class Mistyped extends Error {}

/** Throws `Mistyped`. */
export function wanted(by: By, text: string): Wanted {
  switch (by) {
    case "event": {
      const event = Number(text);
      if (!Number.isSafeInteger(event) || event < 1) throw new Mistyped("The number of an event is a whole number from 1 on.");
      return { event };
    }
    case "input_set":
      if (text.trim() === "") throw new Mistyped("Give the id of an Input Set.");
      return { input_set: text.trim() };
    case "at": {
      const at = Date.parse(`${text}Z`) / 1000;
      if (Number.isNaN(at) || at < 0) throw new Mistyped("Give a date and a time from 1970 on.");
      return { at };
    }
    case "where":
      return { where: values(text) };
  }
}

/** `column=value`, then a comma or the end. In quotes, a quotation mark of the value stands twice. */
const ONE = /\s*([^=,"]+?)\s*=\s*(?:"((?:[^"]|"")*)"|([^,"]*?))\s*(?:,|$)/y;

function values(text: string): Record<string, string> {
  const found = new Map<string, string>();
  ONE.lastIndex = 0;
  for (let place = 0; place < text.trimEnd().length; place = ONE.lastIndex) {
    const one = ONE.exec(text);
    if (one === null) throw new Mistyped('Write column=value, with commas between them; a value with a comma in it stands in "quotes".');
    if (found.has(one[1]!)) throw new Mistyped(`Column ${one[1]} is named twice: a record has one value of it.`);
    found.set(one[1]!, one[2]?.replaceAll('""', '"') ?? one[3]!);
  }
  if (found.size === 0) throw new Mistyped("Write column=value.");
  return Object.fromEntries(found);
}
