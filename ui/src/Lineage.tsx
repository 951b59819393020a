import dagre from "@dagrejs/dagre";
import { type Edge, Handle, type Node, type NodeProps, Position } from "@xyflow/react";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { type Found, type LineageEvent, type LineagePorts, type LineageRead, type LineageStep, Refused, type Rights, type Server, type Table } from "./data";
import { Flow } from "./Graph";
import type { Named } from "./place";
import { count, counted } from "./words";

type Way = "backward" | "forward";

/** Events of a port, or a read action: one node of the graph. */
interface Item {
  id: string;
  title: string;
  figures: string;
  events: LineageEvent[];
  read: LineageRead | null;
  done: Partial<Record<Way, LineageStep>>;
}

interface Unfolded {
  items: Map<string, Item>;
  edges: Map<string, [string, string]>;
}

interface Props {
  server: Server;
  uid: string;
  rights: Rights | null;
  named: Named | null;
  /** The address names the event with which a graph begins. */
  open: (named: Named | null) => void;
}

const NOTHING: Unfolded = { items: new Map(), edges: new Map() };
const WIDTH = 230;
const HEIGHT = 66;

/** Where an event comes from, and what was made of it: it unfolds by click. */
export function Lineage({ server, uid, rights, named, open }: Props) {
  const api = `api/runs/${uid}/lineage`;
  const [graph, setGraph] = useState(NOTHING);
  const [chosen, choose] = useState<string | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const latest = useRef(graph);
  const busy = useRef(0);
  const show = (next: Unfolded) => setGraph((latest.current = next));
  const guarded = async (work: () => Promise<void>) => {
    setProblem(null);
    const mine = busy.current;
    try {
      await work();
    } catch (error) {
      if (mine === busy.current) setProblem(error instanceof Refused ? error.message : String(error));
    }
  };
  const unfold = (item: Item, way: Way) =>
    guarded(async () => {
      const mine = busy.current;
      const query = new URLSearchParams({ port: item.events[0]!.port, direction: way });
      for (const one of item.events) query.append("event", String(one.event));
      const step = await server.get<LineageStep>(`${api}/step?${query}`);
      if (mine === busy.current) show(grown(latest.current, item.id, way, step));
    });
  const port = named?.port;
  const event = named?.event;
  useEffect(() => {
    busy.current += 1;
    show(NOTHING);
    choose(null);
    setProblem(null);
    if (port === undefined || event === undefined) return;
    const root = itemOf(port, [{ port, event, records: null, code: 0, about: null }], 1, null);
    show({ items: new Map([[root.id, root]]), edges: new Map() });
    choose(root.id);
    void unfold(root, "backward");
  }, [uid, port, event]);
  const item = chosen === null ? undefined : graph.items.get(chosen);
  return (
    <section aria-label="Lineage">
      <h2>Lineage</h2>
      <Finder server={server} api={api} data={rights?.data === true} open={open} />
      {problem !== null && (
        <p role="alert" className="problem">
          {problem}
        </p>
      )}
      {graph.items.size > 0 && (
        <div className={item ? "columns with-panel" : "columns"}>
          <Picture graph={graph} chosen={chosen} choose={choose} unfold={unfold} />
          {item && <Details key={item.id} server={server} api={api} item={item} data={rights?.data === true} open={open} close={() => choose(null)} />}
        </div>
      )}
    </section>
  );
}

function itemOf(port: string, events: LineageEvent[], many: number, records: number | null): Item {
  const [first, last] = [events[0]!.event, events.at(-1)!.event];
  return {
    id: `${port} ${events.map((one) => one.event).join()}`,
    title: many === 1 ? `${port} ${first}` : port,
    figures: [many > 1 && `${count(many)} events from ${first}${many === events.length ? ` to ${last}` : ""}`, records !== null && counted(records, "record")]
      .filter(Boolean)
      .join(", "),
    events,
    read: null,
    done: {},
  };
}

/** The graph with what a step from one of its nodes has found. */
function grown(before: Unfolded, from: string, way: Way, step: LineageStep): Unfolded {
  const items = new Map(before.items);
  const edges = new Map(before.edges);
  const item = items.get(from)!;
  const records = step.roots.reduce((sum, one) => sum + (one.records ?? 0), 0);
  const root = item.events.length === 1 ? itemOf(step.roots[0]!.port, step.roots, 1, records) : item;
  items.set(from, { ...root, id: from, done: { ...item.done, [way]: step } });
  const found = step.ports.map((one) => itemOf(one.port, one.first, one.events, one.records));
  for (const one of step.reads) {
    const title = `read ${one.operator}.${one.connection} ${one.action}`;
    found.push({ id: title, title, figures: one.records === null ? "" : counted(one.records, "record"), events: [], read: one, done: {} });
  }
  for (const one of found) {
    if (!items.has(one.id)) items.set(one.id, one);
    const edge: [string, string] = way === "forward" ? [from, one.id] : [one.id, from];
    edges.set(edge.join(" → "), edge);
  }
  return { items, edges };
}

type ItemNode = Node<{ item: Item; chosen: boolean; choose: (id: string) => void; unfold: (item: Item, way: Way) => void }, "item">;

function Picture({ graph, chosen, choose, unfold }: { graph: Unfolded; chosen: string | null } & Pick<ItemNode["data"], "choose" | "unfold">) {
  const drawn = new dagre.graphlib.Graph();
  drawn.setGraph({ rankdir: "LR", ranksep: 60, nodesep: 20, marginx: 10, marginy: 10 });
  drawn.setDefaultEdgeLabel(() => ({}));
  for (const id of graph.items.keys()) drawn.setNode(id, { width: WIDTH, height: HEIGHT });
  for (const [begin, end] of graph.edges.values()) drawn.setEdge(begin, end);
  dagre.layout(drawn);
  const nodes: ItemNode[] = [...graph.items.values()].map((item) => {
    const { x, y } = drawn.node(item.id) as { x: number; y: number };
    return {
      id: item.id,
      type: "item",
      position: { x: x - WIDTH / 2, y: y - HEIGHT / 2 },
      width: WIDTH,
      height: HEIGHT,
      data: { item, chosen: item.id === chosen, choose, unfold },
    };
  });
  const edges: Edge[] = [...graph.edges].map(([id, [source, target]]) => ({ id, source, target, className: "line" }));
  return <Flow label="Lineage graph" nodes={nodes} edges={edges} nodeTypes={NODE_TYPES} height={360} fit={nodes.length} />;
}

function ItemBox({ data: { item, chosen, choose, unfold } }: NodeProps<ItemNode>) {
  const arrow = (way: Way, sign: string, said: string) =>
    item.read === null && (
      <button type="button" className="arrow nodrag nopan" disabled={way in item.done} aria-label={`${said}: ${item.title}`} onClick={() => unfold(item, way)}>
        {sign}
      </button>
    );
  return (
    <div className={`box item ${item.read ? "begin" : "done"}${chosen ? " selected" : ""}`}>
      <Handle type="target" position={Position.Left} isConnectable={false} />
      {arrow("backward", "←", "What it was made from")}
      <button type="button" className="nodrag nopan" aria-pressed={chosen} onClick={() => choose(item.id)}>
        <span className="box-name">{item.title}</span>
        <span className="small">{item.figures}</span>
      </button>
      {arrow("forward", "→", "What was made from it")}
      <Handle type="source" position={Position.Right} isConnectable={false} />
    </div>
  );
}

const NODE_TYPES = { item: ItemBox };

interface DetailProps extends Pick<Props, "server" | "open"> {
  api: string;
  item: Item;
  data: boolean;
  close: () => void;
}

/** What is known of a node: its events, Input Sets, and records on demand. */
function Details({ server, api, item, data, open, close }: DetailProps) {
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
          {way === "backward" ? "Made from" : "Went into"} {counted(step.input_sets_in_all, "Input Set")}
          {step.input_sets_in_all > 0 && `: ${step.input_sets.map((inset) => inset.id).slice(0, 5).join(", ")}`}
          {step.input_sets_in_all > 5 && " ..."}
          {step.reads_in_all > step.reads.length && `; ${count(step.reads_in_all)} read actions`}
          {step.cut && ". There are more: this is the first part"}
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
      {item.events.length > 1 && (
        <ul className="plain" aria-label="Events">
          {item.events.map((event) => (
            <li key={event.event}>
              <button type="button" className="link" onClick={() => open(event)}>
                {event.port} {event.event}
              </button>{" "}
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
      {table !== null && <Records table={table} />}
    </aside>
  );
}

function Records({ table }: { table: Table }) {
  return (
    <div className="scroll" tabIndex={0} role="region" aria-label="Records">
      <table>
        <thead>
          <tr>
            {table.columns.map((name) => (
              <th key={name} scope="col">
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {table.rows.map((row, index) => (
            <tr key={index}>
              {row.map((value, place) => (
                <td key={place}>{value}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {table.more && <p className="small">These are the first ones.</p>}
    </div>
  );
}

/** Chooses a port, and finds an event of it. */
function Finder({ server, api, data, open }: Pick<DetailProps, "server" | "api" | "data" | "open">) {
  const [ports, setPorts] = useState<LineagePorts | null>(null);
  const [port, setPort] = useState("");
  const [by, setBy] = useState("event");
  const [text, setText] = useState("");
  const [found, setFound] = useState<Found | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    server.get<LineagePorts>(api).then(setPorts, (error) => setProblem(String(error.message)));
  }, [server, api]);
  if (ports === null) return problem === null ? null : <p className="problem">{problem}</p>;
  if (ports.ports.length === 0) return <p className="small">The pipeline declares no lineage scope.</p>;
  const look = async (before: number | null) => {
    setProblem(null);
    const where = Object.fromEntries(text.split(",").map((one) => one.split(/=(.*)/s).map((part) => part.trim())));
    const wanted = {
      event: { event: Number(text) },
      at: { at: Date.parse(`${text}Z`) / 1000 },
      where: { where, before },
      input_set: { input_set: text.trim() },
    }[by];
    try {
      setFound(await server.post<Found>(`${api}/find`, { port: port || ports.ports[0]!.port, ...wanted }));
    } catch (error) {
      setFound(null);
      setProblem(error instanceof Refused ? error.message : String(error));
    }
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    void look(null);
  };
  return (
    <form className="actions" onSubmit={submit}>
      <label>
        Port{" "}
        <select value={port} onChange={(event) => setPort(event.target.value)}>
          {ports.ports.map((one) => (
            <option key={one.port} value={one.port}>
              {one.port} ({count(one.sent)} events)
            </option>
          ))}
        </select>
      </label>
      <label>
        by{" "}
        <select
          value={by}
          onChange={(event) => {
            setBy(event.target.value);
            setText("");
          }}
        >
          <option value="event">number</option>
          <option value="input_set">Input Set</option>
          <option value="at">time (UTC), from then on</option>
          {data && <option value="where">values</option>}
        </select>
      </label>
      <input
        type={{ event: "number", at: "datetime-local" }[by] ?? "text"}
        step={1}
        min={by === "event" ? 1 : undefined}
        required
        aria-label="What to look for"
        placeholder={by === "where" ? "column=value, ..." : ""}
        value={text}
        onChange={(event) => setText(event.target.value)}
      />
      <button type="submit" className="choice">
        Find
      </button>
      <span role="status" className="small">
        {found !== null && `${count(found.events.length)} found${found.searched === null ? "" : ` in ${count(found.searched)} events`}`}
      </span>
      {found?.before && (
        <button type="button" className="link" onClick={() => look(found.before)}>
          Look at earlier events
        </button>
      )}
      {problem !== null && <p role="alert" className="problem">{problem}</p>}
      {found?.events.map((one) => (
        <button key={`${one.port} ${one.event}`} type="button" className="link" onClick={() => open(one)}>
          {one.port} {one.event}
        </button>
      ))}
    </form>
  );
}
