import { useEffect, useState } from "react";
import { Behind } from "./Behind";
import { EventLink } from "./EventLink";
import { type LineageStep, Refused, type Server, type Table, type Unmade } from "./data";
import type { Named, RecordPlace } from "./place";
import { Records } from "./Records";
import { followed, type Item, type Way } from "./unfolded";
import { count, counted, part } from "./words";

/** Input Sets that are named. */
const MOST_NAMED = 5;

interface Props {
  server: Server;
  open: (named: Named | null) => void;
  api: string;
  item: Item;
  /** Whether the person may read records; null as long as that is not known. */
  data: boolean | null;
  /** The records that are followed, from one of this box on. */
  way: RecordPlace[];
  walk: (way: RecordPlace[]) => void;
  close: () => void;
}

/** What is known of a box: its events, Input Sets, and records on demand. */
export function ItemDetails({ server, api, item, data, open, way, walk, close }: Props) {
  const [table, setTable] = useState<Table | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const one = item.read ?? (item.events.length === 1 ? item.events[0] : null);
  const look = async () => {
    setProblem(null);
    const { read } = item;
    const asked: Record<string, string> = read
      ? { operator: read.operator, connection: read.connection, action: String(read.action) }
      : { port: item.events[0]!.port, event: String(item.events[0]!.event) };
    try {
      setTable(await server.get<Table>(`${api}/${read ? "read" : "records"}?${new URLSearchParams(asked)}`));
    } catch (error) {
      setProblem(error instanceof Refused ? error.message : String(error));
    }
  };
  // An address may name a record: its table is shown, too.
  useEffect(() => {
    if (way.length > 0 && table === null && data) void look();
  }, [way.length > 0, data]);
  return (
    <aside className="panel" aria-label={item.title} onKeyDown={(event) => event.key === "Escape" && close()}>
      <header>
        <h3>{item.title}</h3>
        <button type="button" className="close" onClick={close} aria-label="Close (Escape)">
          ✕
        </button>
      </header>
      <p className="small">{item.figures}</p>
      {Object.entries(item.done).map(([way, step]) => (
        <div key={way} className="small">
          {stepSaid(way as Way, step, item)}
          {step.unmade.length > 0 && (
            <ul className="plain" aria-label="Where nothing was made from it">
              {step.unmade.map((one) => (
                <li key={`${one.operator} ${one.use}`} className={one.use === "aside" ? "wrong" : undefined}>
                  {unmadeSaid(one, item)}
                </li>
              ))}
            </ul>
          )}
          {step.unmade_cut && <p>What became of it is said of the first part only.</p>}
          {hidesIds(step) && data === false && <p>The ids of Input Sets are for those who may read the data of this DAG.</p>}
        </div>
      ))}
      {one?.about && (
        <dl>
          {Object.entries(one.about).map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      )}
      {item.many > item.events.length && item.read === null && <p className="small">{part(item.events.length, item.many, "event")}:</p>}
      {item.many > 1 && (
        <ul className="plain" aria-label="Events">
          {item.events.map((event) => (
            <li key={event.event}>
              <EventLink event={event} open={open} />{" "}
              <span className="small">{event.records === null ? "let go by retention" : counted(event.records, "record")}</span>
            </li>
          ))}
        </ul>
      )}
      {one !== null && !item.read?.is_source && data && (
        <button type="button" className="choice" onClick={look}>
          Show records
        </button>
      )}
      {one !== null && data === false && <p className="small">You may not read the data of this DAG.</p>}
      {problem !== null && <p role="alert" className="problem">{problem}</p>}
      {table !== null && (
        <>
          <p className="small">{tableSaid(table)}</p>
          <Records
            columns={table.columns}
            rows={table.rows}
            label="Records"
            choose={item.read ? undefined : (place) => walk([{ port: item.events[0]!.port, event: item.events[0]!.event, place }])}
          />
        </>
      )}
      {way.length > 0 && <Behind server={server} api={api} way={way} walk={walk} />}
    </aside>
  );
}

/** What a step has found besides boxes, and how much of everything is not shown. */
function stepSaid(way: Way, step: LineageStep, item: Item): string {
  const all = step.input_sets_in_all;
  if (all === 0 && way === "forward") {
    return step.unmade.length > 0 || step.cut || step.unmade_cut ? "" : "Nothing was made from it so far.";
  }
  const parts = [
    all > 0 ? `${way === "backward" ? "Made from" : "Went into"} ${counted(all, "Input Set")}` : nothingBehind(step),
    followed(item) && ` (${followed(item)})`,
    named(step.input_sets.slice(0, MOST_NAMED), all),
    step.ports_in_all > step.ports.length && `; ${part(step.ports.length, step.ports_in_all, "port")} shown`,
    step.reads_in_all > step.reads.length && `; ${part(step.reads.length, step.reads_in_all, "read action")} shown`,
    step.cut && ". There are more: this is the first part",
  ];
  return parts.filter(Boolean).join("");
}

/** What was read is a box of its own. */
const nothingBehind = (step: LineageStep): string =>
  step.reads_in_all > 0 ? "Read by a source" : "Nothing is recorded of what it was made from";

const hidesIds = (step: LineageStep): boolean =>
  [step, ...step.unmade].some((one) => one.input_sets_in_all > 0 && one.input_sets.length === 0);

function named(insets: LineageStep["input_sets"], all: number): string {
  const [shown, some] = [insets.length, insets.map((one) => one.id).join(", ")];
  return shown === 0 ? "" : `: ${some}${shown < all ? ` (${count(shown)} of ${count(all)})` : ""}`;
}

/** What an operator has done with events from which it has made nothing. */
function unmadeSaid(one: Unmade, item: Item): string {
  const sets = `${counted(one.input_sets_in_all, "Input Set")} of ${one.operator}`;
  const which = named(one.input_sets, one.input_sets_in_all);
  const has = item.many === 1 || one.events === 1 ? "has" : "have";
  const [events, is] = item.many === 1 ? ["it", "is"] : [counted(one.events, "event"), one.events === 1 ? "is" : "are"];
  const begin = events === "it" ? "It" : events;
  switch (one.use) {
    case "unused_yet":
      return `${one.operator} has not processed ${events} yet`;
    case "ignored":
      return `No Input Set of ${one.operator} uses ${events}`;
    case "waiting":
      return `${begin} ${is === "is" ? "waits" : "wait"} in ${sets}${which}`;
    case "aside":
      return `${begin} ${is} in ${sets} in quarantine${which}`;
    case "without_output":
      if (one.input_sets_in_all === 0) return `${one.operator} has made nothing of ${events} in lineage`;
      return `${begin} ${is} in ${sets}, done without an output in lineage${which}`;
    case "let_go":
      if (one.input_sets_in_all === 0) return `Nothing that ${one.operator} has made of ${events} is in the log any more, or nothing was made`;
      return `${begin} ${is} in ${sets}, done: nothing that was made of it is in the log any more, or nothing was made${which}`;
    case "no_records":
      return `${begin} ${has} no records for ${one.operator}`;
  }
}

function tableSaid(table: Table): string {
  const columns = table.columns_in_all > table.columns.length ? `, ${part(table.columns.length, table.columns_in_all, "column")}` : "";
  return `${part(table.rows.length, table.rows_in_all, "record")}${columns}`;
}
