import { Graph as DagreGraph, layout as arrange } from "@dagrejs/dagre";
import { type Edge, Handle, type Node, type NodeProps, Position } from "@xyflow/react";
import { useEffect, useRef, useState } from "react";
import { type LineageStep, Refused, type Rights, type Server } from "./data";
import { Finder } from "./Finder";
import { Flow } from "./Graph";
import { ItemDetails } from "./ItemDetails";
import { MOST_KEPT, type Named, type RecordPlace, spelled, type Trail } from "./place";
import { followed as followedOf, grown, heldIn, type Item, NOTHING, rootOf, stepNamed, stepsOf, type Unfolded, type Way } from "./unfolded";
import { counted } from "./words";

interface Props {
  server: Server;
  uid: string;
  rights: Rights | null;
  named: Named | null;
  /** The address names the event with which a graph begins. */
  open: (named: Named | null) => void;
  /** What the address says of the graph when it begins, and what writes there how it has grown. */
  trail: Trail;
  keep: (trail: Trail) => void;
}

const WIDTH = 250;
const HEIGHT = 84;

/** Where an event comes from, and what was made of it: it unfolds by click. */
export function Lineage({ server, uid, rights, named, open, trail, keep }: Props) {
  const api = `api/runs/${uid}/lineage`;
  const [graph, setGraph] = useState(NOTHING);
  const [chosen, choose] = useState<string | null>(null);
  const [way, setWay] = useState<RecordPlace[]>([]);
  const [lost, setLost] = useState(0);
  const [problem, setProblem] = useState<string | null>(null);
  const latest = useRef(graph);
  const followed = useRef(way);
  /** Counts what is shown: an answer to what was shown before comes too late. */
  const shown = useRef(0);
  /** What this view has written into the address; anything else there is a link that is to be shown. */
  const written = useRef("");
  const restoring = useRef(false);
  const show = (next: Unfolded) => setGraph((latest.current = next));
  const walkTo = (records: RecordPlace[]) => setWay((followed.current = records));
  const write = () => {
    if (restoring.current) return;
    const next = { unfolded: stepsOf(latest.current), records: followed.current };
    written.current = `${uid} ${port} ${event} ${spelled(next)}`;
    keep(next);
  };
  /** Whether that has succeeded, for what is still shown. */
  const unfold = async (item: Item, way: Way): Promise<boolean> => {
    const mine = shown.current;
    setProblem(null);
    try {
      const query = new URLSearchParams({ port: item.events[0]!.port, direction: way });
      for (const one of item.events) query.append("event", String(one.event));
      const step = await server.get<LineageStep>(`${api}/step?${query}`);
      if (mine === shown.current) show(grown(latest.current, item.id, way, step));
    } catch (error) {
      if (mine === shown.current) setProblem(error instanceof Refused ? error.message : String(error));
      return false;
    }
    return mine === shown.current;
  };
  const unfoldAndKeep = async (item: Item, way: Way) => (await unfold(item, way)) && write();
  const walk = (records: RecordPlace[]) => {
    walkTo(records);
    write();
  };
  const chooseBox = (id: string | null) => {
    if (id === chosen) return;
    choose(id);
    walk([]);
  };
  /** Unfolds what the address says, as far as it is still there, up to the first refusal. */
  const restore = async (root: Item) => {
    if (!(await unfold(root, "backward"))) return;
    let missing = 0;
    for (const step of trail.unfolded ?? []) {
      const [id, way] = stepNamed(step);
      const item = latest.current.items.get(id);
      if (item === undefined) missing += 1;
      else if (!(way in item.done) && !(await unfold(item, way))) return;
    }
    const records = trail.records ?? [];
    const box = records[0] && latest.current.items.get(rootOf(records[0].port, records[0].event).id);
    if (box) {
      choose(box.id);
      walkTo(records);
    } else missing += records.length > 0 ? 1 : 0;
    setLost(missing);
  };
  const port = named?.port;
  const event = named?.event;
  const address = `${uid} ${port} ${event} ${spelled(trail)}`;
  useEffect(() => {
    if (address !== written.current) begin();
  }, [address]);
  useEffect(() => () => void (shown.current += 1), []);
  const begin = () => {
    written.current = address;
    restoring.current = false;
    const mine = (shown.current += 1);
    show(NOTHING);
    choose(null);
    walkTo([]);
    setLost(0);
    setProblem(null);
    if (port === undefined || event === undefined) return;
    const root = rootOf(port, event);
    show({ items: new Map([[root.id, root]]), edges: new Map() });
    choose(root.id);
    restoring.current = true;
    void restore(root).finally(() => {
      if (mine === shown.current) restoring.current = false;
    });
  };
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
      {lost > 0 && (
        <p className="problem">
          {counted(lost, "step")} of this address cannot be shown: a box has another name once there are more events in it, and retention
          removes events.
        </p>
      )}
      {stepsOf(graph).length > MOST_KEPT && <p className="small">The address keeps the first {MOST_KEPT} boxes that were unfolded.</p>}
      {graph.items.size > 0 && (
        <div className={item ? "lineage columns with-panel" : "columns"}>
          <Picture graph={graph} chosen={chosen} choose={chooseBox} unfold={unfoldAndKeep} />
          {item && (
            <ItemDetails
              key={item.id}
              server={server}
              api={api}
              item={item}
              data={rights?.data ?? null}
              open={open}
              way={way}
              walk={walk}
              close={() => chooseBox(null)}
            />
          )}
        </div>
      )}
    </section>
  );
}

type ItemNode = Node<{ item: Item; chosen: boolean; choose: (id: string) => void; unfold: (item: Item, way: Way) => void }, "item">;

function Picture({ graph, chosen, choose, unfold }: { graph: Unfolded; chosen: string | null } & Pick<ItemNode["data"], "choose" | "unfold">) {
  const drawn = new DagreGraph();
  drawn.setGraph({ rankdir: "LR", ranksep: 60, nodesep: 20, marginx: 10, marginy: 10 });
  drawn.setDefaultEdgeLabel(() => ({}));
  for (const id of graph.items.keys()) drawn.setNode(id, { width: WIDTH, height: HEIGHT });
  for (const [begin, end] of graph.edges.values()) drawn.setEdge(begin, end);
  arrange(drawn);
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
      <button type="button" className="arrow nodrag nopan" disabled={way in item.done} aria-label={`${said}${followedOf(item) && ` (${followedOf(item)})`}: ${item.title}`} title={followedOf(item) || undefined} onClick={() => unfold(item, way)}>
        {sign}
      </button>
    );
  const held = heldIn(item);
  return (
    <div className={`box item ${item.read ? "begin" : "done"}${chosen ? " selected" : ""}`}>
      <Handle type="target" position={Position.Left} isConnectable={false} />
      {arrow("backward", "←", "What it was made from")}
      <button type="button" className="nodrag nopan" aria-pressed={chosen} onClick={() => choose(item.id)}>
        <span className="box-name">{item.title}</span>
        <span className="small">{item.figures}</span>
        {followedOf(item) && (
          <span className="small" aria-hidden="true">
            ← → {followedOf(item)}
          </span>
        )}
        {held.text && <span className={held.isWrong ? "small wrong" : "small"}>{held.text}</span>}
      </button>
      {arrow("forward", "→", "What was made from it")}
      <Handle type="source" position={Position.Right} isConnectable={false} />
    </div>
  );
}

const NODE_TYPES = { item: ItemBox };
