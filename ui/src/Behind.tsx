import { useEffect, useState } from "react";
import { type Behind as Found, type BehindPort, Refused, type Server } from "./data";
import type { RecordPlace } from "./place";
import { Records } from "./Records";
import { counted, part } from "./words";

interface Props {
  server: Server;
  api: string;
  way: RecordPlace[];
  walk: (way: RecordPlace[]) => void;
}

/** The records that a record was made from, operator by operator towards the sources. */
export function Behind({ server, api, way, walk }: Props) {
  const [found, setFound] = useState<Found | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const at = way[way.length - 1]!;
  useEffect(() => {
    let gone = false;
    setFound(null);
    setProblem(null);
    const asked = new URLSearchParams({ port: at.port, event: String(at.event), place: String(at.place) });
    server.get<Found>(`${api}/behind?${asked}`).then(
      (answer) => gone || setFound(answer),
      (error) => gone || setProblem(error instanceof Refused ? error.message : String(error)),
    );
    return () => {
      gone = true;
    };
  }, [server, api, at.port, at.event, at.place]);
  return (
    <section aria-label="What the record was made from">
      <h3>What it was made from</h3>
      <nav className="way" aria-label="Records on the way">
        {way.map((one, index) => (
          <button
            type="button"
            className="link"
            key={index}
            aria-current={index === way.length - 1 ? "step" : undefined}
            onClick={() => walk(way.slice(0, index + 1))}
          >
            {index > 0 && (one.perhaps ? "← perhaps " : "← ")}
            {named(one)}
          </button>
        ))}
        <button type="button" className="link" onClick={() => walk([])}>
          Close
        </button>
      </nav>
      {problem !== null && (
        <p role="alert" className="problem">
          {problem}
        </p>
      )}
      {problem === null && found === null && <p className="small">Looking through the records …</p>}
      {found !== null && found.ports.length === 0 && <p className="small">Nothing is recorded of what it was made from.</p>}
      {found?.ports.map((port) => (
        <Port key={port.port} port={port} follow={(event, place) => walk([...way, { port: port.port, event, place, perhaps: port.doubts.length > 0 }])} />
      ))}
      {found !== null && found.ports_in_all > found.ports.length && (
        <p className="small">{part(found.ports.length, found.ports_in_all, "port")} are shown.</p>
      )}
      {found?.reads.map((read, index) => (
        <div key={index}>
          <p className="small">
            Read by {read.operator} from {read.connection}:{" "}
            {read.problem === null
              ? part(read.rows.length, read.rows_in_all, "row") + (read.by_key ? ", with the keys of these records" : ", perhaps not all of them were used")
              : `${counted(read.rows_in_all, "row")}, ${read.problem}`}
          </p>
          {read.problem === null && <Records columns={read.columns} rows={read.rows} label={`Rows read from ${read.connection}`} />}
        </div>
      ))}
      {found !== null && found.reads_in_all > found.reads.length && (
        <p className="small">{part(found.reads.length, found.reads_in_all, "read")} are shown.</p>
      )}
    </section>
  );
}

function Port({ port, follow }: { port: BehindPort; follow: (event: number, place: number) => void }) {
  // Of a source that has said it: which row of what it has read. Others have only their place in the event.
  const withRows = port.rows.some((row) => row.source_row !== null);
  return (
    <div>
      <p className="small">
        {port.port}: {part(port.rows.length, port.records, "record")} of {counted(port.events, "event")}
        {port.unknown > 0 && `, among them ${counted(port.unknown, "event")} without records in the log`}
        {port.doubts.length === 0 ? ", exactly those that it was made from" : ", perhaps more than it was made from:"}
      </p>
      {port.doubts.length > 0 && (
        <ul className="small">
          {port.doubts.map((doubt) => (
            <li key={doubt}>{doubt}</li>
          ))}
        </ul>
      )}
      {port.problem !== null ? (
        <p className="small">No records are shown: {port.problem}</p>
      ) : (
        <Records
          columns={["event", "record", ...(withRows ? ["row"] : []), ...port.columns]}
          rows={port.rows.map((row) => [
            String(row.event),
            String(row.place),
            ...(withRows ? [row.source_row === null ? null : String(row.source_row)] : []),
            ...row.values,
          ])}
          label={`Records of ${port.port}`}
          choose={(index) => follow(port.rows[index]!.event, port.rows[index]!.place)}
        />
      )}
    </div>
  );
}

function named(one: RecordPlace): string {
  return `${one.port} ${one.event}, record ${one.place}`;
}
