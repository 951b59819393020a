import { useEffect, useState } from "react";
import { Behind } from "./Behind";
import { EventLink } from "./EventLink";
import { type LineageStep, Refused, type Server, type Table } from "./data";
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
  data: boolean;
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
        <p key={way} className="small">
          {stepSaid(way as Way, step, item)}
        </p>
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
      {one !== null && !data && <p className="small">You may not read the data of this DAG.</p>}
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
  const insets = step.input_sets.slice(0, MOST_NAMED).map((inset) => inset.id);
  const [shown, all] = [insets.length, step.input_sets_in_all];
  const parts = [
    `${way === "backward" ? "Made from" : "Went into"} ${counted(all, "Input Set")}`,
    followed(item) && ` (${followed(item)})`,
    shown > 0 && `: ${insets.join(", ")}`,
    shown < all && ` (${count(shown)} of ${count(all)})`,
    step.ports_in_all > step.ports.length && `; ${part(step.ports.length, step.ports_in_all, "port")} shown`,
    step.reads_in_all > step.reads.length && `; ${part(step.reads.length, step.reads_in_all, "read action")} shown`,
    step.cut && ". There are more: this is the first part",
  ];
  return parts.filter(Boolean).join("");
}

function tableSaid(table: Table): string {
  const columns = table.columns_in_all > table.columns.length ? `, ${part(table.columns.length, table.columns_in_all, "column")}` : "";
  return `${part(table.rows.length, table.rows_in_all, "record")}${columns}`;
}
