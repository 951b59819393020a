import { type KeyboardEvent, type MouseEvent, useRef, useState } from "react";
import { Again } from "./Again";
import type { Calendar, Cell, Rights, Server } from "./data";
import { usePolled } from "./poll";
import { Problem } from "./Problem";
import { count, counted } from "./words";

const LOOK_SECONDS = 10;
const RIGHTS_SECONDS = 60;
const MOST_NAMED = 3;
/** A month of hours, or years of days: what comes below is still in sight. */
const MOST_ROWS = 32;

/** A sign, and a colour that says the same. */
const SIGNS: Record<Cell["state"] | "replaced" | "stale", [string, string, string]> = {
  done: ["✓", "done", "done"],
  replaced: ["↻", "done", "done, computed again"],
  stale: ["≠", "warn", "done, from a day that was replaced since"],
  running: ["▶", "good", "running"],
  red: ["✗", "bad", "red"],
  "given up": ["○", "warn", "given up, waits for its next run"],
  removed: ["~", "none", "removed from the log"],
  missing: ["–", "bad none", "missing"],
  "no run yet": ["·", "none", "no run yet"],
  hidden: ["?", "none", "a run that you may not see"],
};
const kindOf = (cell: Cell) => (cell.state !== "done" ? cell.state : cell.stale ? "stale" : cell.replaced ? "replaced" : "done");

/** The first and the last one that a person has chosen, in the order of time. */
export interface Chosen {
  first: string;
  last: string;
}

interface Props {
  server: Server;
  pipeline: string;
  chosen: Chosen | null;
  choose: (chosen: Chosen | null) => void;
}

/** The days of a pipeline: a row for each month, or, of hours, for each day. */
export function Days({ server, pipeline, chosen, choose }: Props) {
  const [until, setUntil] = useState<string | null>(null);
  const query = new URLSearchParams(until === null ? { pipeline } : { pipeline, last: until });
  const look = usePolled<Calendar>(server, `api/days?${query}`, LOOK_SECONDS);
  if (look.value === null) return <Problem problem={look.problem} at={look.at} />;
  const rows = look.value.rows.slice(-MOST_ROWS);
  const calendar = { ...look.value, rows, has_earlier: look.value.has_earlier || rows.length < look.value.rows.length };
  const all = calendar.rows.flatMap((row) => row.cells);
  const within = chosen === null ? [] : all.filter((cell) => cell.key >= chosen.first && cell.key <= chosen.last);
  return (
    <div className="days">
      <Problem problem={look.problem} at={look.at} />
      <Grid calendar={calendar} all={all} pipeline={pipeline} chosen={chosen} choose={choose} />
      <p className="small legend">
        {calendar.what}s of {calendar.zone}:{" "}
        {totals(all).map(([kind, many]) => (
          <span key={kind}>
            <span className={`cell ${SIGNS[kind][1]}`} aria-hidden="true">
              {SIGNS[kind][0]}
            </span>{" "}
            {count(many)} {SIGNS[kind][2]}
          </span>
        ))}
        {all.some((cell) => cell.late) && (
          <span>
            <span className="late" aria-hidden="true" /> late records came with it
          </span>
        )}
        {all.some((cell) => cell.came) && (
          <span>
            <span className="came" aria-hidden="true" /> late records came for it: {count(sum(all.map(cameFor)))}
          </span>
        )}
        {calendar.others > 0 && <span>{counted(calendar.others, "run")} of other partitions</span>}
        {calendar.has_earlier && (
          <button type="button" className="link" onClick={() => setUntil(all[0]?.key ?? null)}>
            Earlier
          </button>
        )}
        {until !== null && (
          <button type="button" className="link" onClick={() => setUntil(null)}>
            Latest
          </button>
        )}
      </p>
      <div role="status">{within.length > 0 && <Said cells={within} what={calendar.what} />}</div>
      {within.length > 0 && <Act server={server} pipeline={pipeline} cells={within} choose={choose} />}
    </div>
  );
}

function totals(cells: Cell[]) {
  const kinds = Object.keys(SIGNS) as (keyof typeof SIGNS)[];
  return kinds.map((kind) => [kind, cells.filter((cell) => kindOf(cell) === kind).length] as const).filter(([, many]) => many > 0);
}

/** One stop of the Tab key: arrows go on from there, Enter chooses, and Shift with an arrow or a click chooses several. */
function Grid({ calendar, all, pipeline, chosen, choose }: { calendar: Calendar; all: Cell[] } & Omit<Props, "server">) {
  const [at, setAt] = useState<string | null>(null);
  const [anchor, setAnchor] = useState<string | null>(null);
  const grid = useRef<HTMLTableElement>(null);
  const here = all.some((cell) => cell.key === at) ? at : all.at(-1)?.key;
  const widest = Math.max(...calendar.rows.map((row) => row.before + row.cells.length));
  const select = (key: string, extends_: boolean) => {
    const from = extends_ && anchor !== null ? anchor : key;
    setAt(key);
    setAnchor(from);
    choose(from < key ? { first: from, last: key } : { first: key, last: from });
  };
  const pressed = (event: KeyboardEvent, row: number, place: number, cell: Cell) => {
    const index = all.indexOf(cell);
    const beside = (other: number) => {
      const found = calendar.rows[other];
      return found?.cells[Math.min(Math.max(place - found.before, 0), found.cells.length - 1)];
    };
    const moves: Record<string, () => Cell | undefined> = {
      ArrowLeft: () => all[index - 1],
      ArrowRight: () => all[index + 1],
      ArrowUp: () => beside(row - 1),
      ArrowDown: () => beside(row + 1),
      Home: () => all[0],
      End: () => all.at(-1),
    };
    if (event.key === "Enter" || event.key === " ") select(cell.key, event.shiftKey);
    else if (event.key === "Escape") choose(null);
    else if (moves[event.key] === undefined) return;
    event.preventDefault();
    const next = moves[event.key]?.();
    if (next === undefined) return;
    setAt(next.key);
    grid.current?.querySelector<HTMLElement>(`[data-key="${next.key}"]`)?.focus();
    if (event.shiftKey) {
      const from = anchor ?? cell.key;
      setAnchor(from);
      choose(from < next.key ? { first: from, last: next.key } : { first: next.key, last: from });
    } else setAnchor(null);
  };
  return (
    <div className="scroll">
      <table ref={grid} role="grid" aria-label={`Calendar of ${pipeline}`} aria-multiselectable="true">
        <thead>
          <tr>
            <td aria-hidden="true" />
            {Array.from({ length: widest }, (_, place) => (
              <th key={place} scope="col" className="small">
                {calendar.what === "day" ? place + 1 : place < 24 ? place : ""}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {calendar.rows.map((row, number) => (
            <tr key={row.name}>
              <th scope="row" className="small">
                {row.name}
              </th>
              {row.before > 0 && <td colSpan={row.before} aria-hidden="true" />}
              {row.cells.map((cell, place) => {
                const [sign, look] = SIGNS[kindOf(cell)];
                const is = chosen !== null && cell.key >= chosen.first && cell.key <= chosen.last;
                return (
                  <td
                    key={cell.key}
                    data-key={cell.key}
                    role="gridcell"
                    className={`cell ${look}`}
                    tabIndex={cell.key === here ? 0 : -1}
                    aria-selected={is}
                    aria-label={said(cell)}
                    title={said(cell)}
                    onClick={(event: MouseEvent) => select(cell.key, event.shiftKey)}
                    onKeyDown={(event) => pressed(event, number, row.before + place, cell)}
                  >
                    {sign}
                    {!!cell.late && <span className="late" aria-hidden="true" />}
                    {cell.came && <span className="came" aria-hidden="true" />}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A cell in words. */
function said(cell: Cell): string {
  const { replaced = 0, because, late = 0 } = cell;
  return [
    `${cell.key}: ${cell.state === "red" ? `red, ${cell.condition}` : cell.state === "removed" ? cell.condition : SIGNS[cell.state][2]}`,
    replaced > 0 ? `${counted(replaced, "run")} before this one${because ? ` (${because})` : ""}` : (because ?? ""),
    ...(cell.stale ?? []).map((one) => `computed from ${one}`),
    late > 0 ? `${counted(late, "late record")} of others came with it` : "",
    cell.came ? `${counted(cameFor(cell), "late record")} came for it with ${broughtBy(cell.came)}${cell.uid ? ", after its run" : ""}` : "",
  ]
    .filter((one) => one !== "")
    .join("; ");
}

const sum = (values: number[]) => values.reduce((one, other) => one + other, 0);
const cameFor = (cell: Cell) => sum(Object.values(cell.came ?? {}));

/** The days whose runs brought records of another one, the last ones. */
function broughtBy(came: Record<string, number>): string {
  const days = Object.keys(came).sort();
  const named = days.slice(-MOST_NAMED).map((day) => `${day} (${count(came[day] ?? 0)})`);
  if (days.length > MOST_NAMED) named.unshift(`${days.length - MOST_NAMED} others`);
  const last = named.pop();
  return named.length > 0 ? `${named.join(", ")} and ${last}` : `${last}`;
}

function Said({ cells, what }: { cells: Cell[]; what: string }) {
  const [first] = cells;
  if (first === undefined) return null;
  if (cells.length > 1) {
    const parts = totals(cells).map(([kind, many]) => `${count(many)} ${SIGNS[kind][2]}`);
    const came = sum(cells.map(cameFor));
    if (came > 0) parts.push(`${counted(came, "late record")} came for them`);
    return (
      <p>
        <strong>
          {first.key} to {cells.at(-1)?.key}
        </strong>
        : {parts.join("; ")}
      </p>
    );
  }
  return (
    <>
      <p>
        <strong>{said(first)}</strong>
      </p>
      {first.cause !== undefined && <p className="problem">{first.cause}</p>}
      {first.next_step !== undefined && <p className="next">Next: {first.next_step}</p>}
      {first.came && first.uid && (
        <p className="small">Where the source of this {what} finds them, compute it again. A lookback does that by itself for the {what} before.</p>
      )}
      {(first.state === "missing" || first.state === "no run yet") && (
        <p className="small">
          Nothing has begun a run of this {what}. A backfill in Airflow, or <code>logio run ... --partition {first.key}</code>, does.
        </p>
      )}
    </>
  );
}

function Act({ server, pipeline, cells, choose }: { server: Server; pipeline: string; cells: Cell[]; choose: Props["choose"] }) {
  const [asked, ask] = useState<Cell[] | null>(null);
  const ready = cells.filter((cell) => cell.state === "done" || cell.state === "red");
  const uid = (ready[0] ?? asked?.[0])?.uid;
  const rights = usePolled<Rights>(server, uid === undefined ? null : `api/runs/${uid}/rights`, RIGHTS_SECONDS);
  const days = (asked ?? []).map(({ key, uid = "", options = [] }) => ({ partition: key, uid, options }));
  return (
    <div className="actions">
      {rights.value?.change === true && ready.length > 0 && (
        <button type="button" className="choice" aria-haspopup="dialog" onClick={() => ask(ready)}>
          Compute again ...
        </button>
      )}
      <button type="button" className="choice" onClick={() => choose(null)}>
        Show all
      </button>
      {asked !== null && <Again server={server} pipeline={pipeline} days={days} close={() => ask(null)} />}
    </div>
  );
}
