import { Graph as DagreGraph, layout as arrange } from "@dagrejs/dagre";
import {
  BaseEdge,
  type Edge,
  EdgeLabelRenderer,
  type EdgeProps,
  type EdgeTypes,
  getBezierPath,
  Handle,
  type Node,
  type NodeProps,
  type NodeTypes,
  Position,
  ReactFlow,
  type ReactFlowInstance,
} from "@xyflow/react";
import { useEffect, useMemo, useRef, useState } from "react";
import type { Connection, Group, Operator, Run, Whole } from "./data";
import { kindOf, State } from "./State";
import { count, counted, percent, rate, seconds } from "./words";

const WIDTH = 224;
/** The controls of the zoom stand above all boxes. */
const FIT = { maxZoom: 1, padding: { top: "40px", right: 0.05, bottom: 0.05, left: 0.05 } } as const;
/** A chain of some hundred groups is still brought into view as a whole. */
const LEAST_ZOOM = 0.01;
const HEAD = 80;
const ROW = 24;
/** Share of the time in which something holds a sender up, and how full a connection is then that may be what does. */
const HELD_UP = 0.2;
const FULL = 0.5;
/** Age of a lag from which a connection is drawn as held up. */
const OLD_SECONDS = 10;
/** A connection inside a group runs in a lane at the right of its box: so far from its edge, and from the next lane. */
const LANE = 10;
const MOST_LANES = 6;
/** Replicas that are drawn in the box of their group. */
const MOST_SQUARES = 40;
const STOPPED = new Set(["dead", "parked", "halted", "new"]);

type GroupNode = Node<{ group: Group | Whole; operators: Operator[]; replicas: Group[]; selected: boolean; select: (name: string) => void }, "box">;
type LagEdge = Edge<{ connection: Connection; pressure: Pressure; said: string }, "lag">;
type Pressure = "none" | "some" | "held" | "stopped";

/** The graph of groups with their operators and ports. Layout only changes with the graph, so nothing jumps. */
export function Graph({ run, selected, select }: { run: Run; selected: string | null; select: (name: string) => void }) {
  const shape = JSON.stringify([run.operators, run.connections.map((one) => [one.from, one.to, one.from_group, one.to_group])]);
  const places = useMemo(() => layout(run), [shape]); // eslint-disable-line
  const byName = new Map<string, Group | Whole>([...run.groups, ...run.wholes].map((one) => [one.name, one]));
  const nodes: GroupNode[] = [];
  for (const [name, place] of places) {
    const group = byName.get(name);
    if (group === undefined) continue;
    nodes.push({
      id: name,
      type: "box",
      position: place,
      width: WIDTH,
      height: place.height,
      data: {
        group,
        operators: run.operators.filter((one) => one.group === name),
        replicas: run.groups.filter((one) => one.whole === name),
        selected: name === selected || byName.get(selected ?? "")?.name.startsWith(`${name}.`) === true,
        select,
      },
    });
  }
  const edges: LagEdge[] = run.connections
    .filter((one) => byName.has(one.from_group) && byName.has(one.to_group))
    .map((one) => {
      const holds = one.lag.events > 0 && holdsUp(one, byName.get(one.from_group)!);
      const pressure = pressureOf(one, holds, byName.get(one.to_group)!);
      const said = `from ${one.from} to ${one.to}: ${lagText(one) || "no lag"}${pressure === "stopped" ? ", its receiver has stopped" : holds ? ", it may hold its sender up" : ""}`;
      return {
        id: `${one.from} ${one.to}`,
        type: "lag",
        source: one.from_group,
        target: one.to_group,
        sourceHandle: one.from,
        targetHandle: one.to,
        ariaLabel: said,
        // Above the box that it is inside of.
        zIndex: one.from_group === one.to_group ? 1 : 0,
        data: { connection: one, pressure, said },
      };
    });
  const height = Math.max(180, ...[...places.values()].map((one) => one.y + one.height + 80));
  return <Flow label="Graph" nodes={nodes} edges={edges} nodeTypes={NODE_TYPES} edgeTypes={EDGE_TYPES} height={Math.min(height, 520)} fit={places} />;
}

interface FlowProps<N extends Node, E extends Edge> {
  label: string;
  nodes: N[];
  edges: E[];
  nodeTypes: NodeTypes;
  edgeTypes?: EdgeTypes;
  height: number;
  /** Where it changes, all of the graph is brought into view. */
  fit: unknown;
}

/** A graph that can be moved and zoomed; what is in its nodes can be reached with the keyboard. */
export function Flow<N extends Node, E extends Edge>({ label, nodes, edges, nodeTypes, edgeTypes, height, fit }: FlowProps<N, E>) {
  const frame = useRef<HTMLElement>(null);
  const [flow, setFlow] = useState<ReactFlowInstance<N, E> | null>(null);
  useEffect(() => {
    if (flow === null || frame.current === null) return;
    const watch = new ResizeObserver(() => void flow.fitView(FIT));
    watch.observe(frame.current);
    return () => watch.disconnect();
  }, [flow, fit]);
  return (
    <section aria-label={label} className="graph" ref={frame} style={{ height }}>
      <ReactFlow
        nodes={nodes}
        edges={edges}
        nodeTypes={nodeTypes}
        edgeTypes={edgeTypes}
        fitView
        fitViewOptions={FIT}
        onInit={setFlow}
        minZoom={LEAST_ZOOM}
        nodesDraggable={false}
        nodesConnectable={false}
        nodesFocusable={false}
        edgesFocusable={false}
        elementsSelectable={false}
        preventScrolling={false}
        onlyRenderVisibleElements={nodes.length > 60}
      />
      <div className="zoom" role="group" aria-label="Zoom">
        <Zoom name="Zoom in" path="M6 1v10M1 6h10" change={() => flow?.zoomIn()} />
        <Zoom name="Zoom out" path="M1 6h10" change={() => flow?.zoomOut()} />
        <Zoom name="Show all of it" path="M1 4V1h3M8 1h3v3M11 8v3H8M4 11H1V8" change={() => flow?.fitView(FIT)} />
      </div>
    </section>
  );
}

function Zoom({ name, path, change }: { name: string; path: string; change: () => unknown }) {
  return (
    <button type="button" aria-label={name} title={name} onClick={change}>
      <svg viewBox="0 0 12 12" aria-hidden="true">
        <path d={path} />
      </svg>
    </button>
  );
}

function layout(run: Run): Map<string, { x: number; y: number; height: number }> {
  const graph = new DagreGraph();
  graph.setGraph({ rankdir: "LR", ranksep: 120, nodesep: 28, marginx: 10, marginy: 10 });
  graph.setDefaultEdgeLabel(() => ({}));
  const sizes = new Map<string, number>();
  for (const one of run.operators) sizes.set(one.group, (sizes.get(one.group) ?? HEAD + 10) + ROW);
  for (const [name, height] of sizes) graph.setNode(name, { width: WIDTH, height });
  for (const one of run.connections) {
    if (one.from_group !== one.to_group) graph.setEdge(one.from_group, one.to_group);
  }
  arrange(graph);
  const places = new Map<string, { x: number; y: number; height: number }>();
  for (const [name, height] of sizes) {
    const { x, y } = graph.node(name) as { x: number; y: number };
    places.set(name, { x: x - WIDTH / 2, y: y - height / 2, height });
  }
  return places;
}

function GroupBox({ data }: NodeProps<GroupNode>) {
  const { group, operators, replicas, selected, select } = data;
  const figures =
    [
      group.records_per_second > 0 ? `${rate(group.records_per_second)} records/s` : "",
      group.busy === null ? "" : `busy ${percent(group.busy)}`,
      group.recoveries > 0 ? `${group.recoveries} recovered` : "",
      "replicas_in_use" in group ? counted(group.replicas_in_use, "replica") : "",
    ]
      .filter(Boolean)
      .join(", ");
  const done = group.done === null ? "" : `done ${percent(group.done)}`;
  const [said, place] = group.cause === null ? [figures, done] : [group.cause.said, group.cause.place];
  return (
    <div className={`box ${kindOf(group.state, group.condition)}${selected ? " selected" : ""}`}>
      <button type="button" className="box-head nodrag nopan" onClick={() => select(group.name)} aria-pressed={selected}>
        <span className="box-name">
          {group.name}
          {group.incarnation > 1 ? <span className="small"> #{group.incarnation}</span> : null}
        </span>
        <State state={group.state} condition={group.condition} />
        <span className="small box-figures" title={said}>
          {said}
        </span>
        <span className="small box-figures" title={place}>
          {place}
        </span>
      </button>
      {replicas.length > 0 && (
        <span className="squares" aria-hidden="true">
          {replicas.slice(0, MOST_SQUARES).map((one) => (
            <span key={one.name} className={`square ${kindOf(one.state, one.condition)}`} title={`${one.name}: ${one.condition}`} />
          ))}
          {replicas.length > MOST_SQUARES && `+${replicas.length - MOST_SQUARES}`}
        </span>
      )}
      <ul>
        {operators.map((one) => (
          <li key={one.name}>
            {one.inputs.map((port, index) => (
              <Port key={port} name={`${one.name}.${port}`} type="target" at={(index + 1) / (one.inputs.length + 1)} />
            ))}
            <span title={[...one.inputs.map((port) => `in ${port}`), ...one.outputs.map((port) => `out ${port}`)].join(", ")}>
              {one.name}
            </span>
            {one.outputs.map((port, index) => (
              <Port key={port} name={`${one.name}.${port}`} type="source" at={(index + 1) / (one.outputs.length + 1)} />
            ))}
          </li>
        ))}
      </ul>
    </div>
  );
}

/** A port at the edge of its operator; several of them share the height. */
function Port({ name, type, at }: { name: string; type: "source" | "target"; at: number }) {
  const side = type === "source" ? Position.Right : Position.Left;
  return <Handle id={name} type={type} position={side} isConnectable={false} title={name} style={{ top: `${at * 100}%` }} />;
}

function LagLine({ id, sourceX, sourceY, targetX, targetY, data }: EdgeProps<LagEdge>) {
  const { connection, pressure, said } = data!;
  const isInside = connection.from_group === connection.to_group;
  const [path, x, y] = isInside
    ? laneOf(sourceX, sourceY, targetY)
    : getBezierPath({ sourceX, sourceY, targetX, targetY, sourcePosition: Position.Right, targetPosition: Position.Left });
  const text = lagText(connection);
  return (
    <>
      <BaseEdge id={id} path={path} className={`line ${pressure}`} />
      {text && (
        <EdgeLabelRenderer>
          <div
            className={`lag ${pressure}${isInside ? " inside" : ""}`}
            title={said}
            style={{ transform: `translate(${isInside ? -100 : -50}%, -50%) translate(${x}px, ${y}px)` }}
          >
            {text}
          </div>
        </EdgeLabelRenderer>
      )}
    </>
  );
}

/** From a port at the edge of a box along a lane to the row of an operator in it, with an arrow there; and the place of its
 * label. The farther the rows are from each other, the farther inside is the lane: so none crosses another one. */
function laneOf(edge: number, from: number, to: number): [string, number, number] {
  const down = Math.sign(to - from) || 1;
  const rows = Math.round(Math.abs(to - from) / ROW);
  const x = edge - 12 - LANE * Math.min(Math.max(rows - 1, 0), MOST_LANES);
  const end = to - 5 * down; // beside the line that leaves the same row
  const path = `M${edge} ${from}H${x + 3}q-3 0 -3 ${3 * down}V${end - 3 * down}q0 ${3 * down} -3 ${3 * down}h-4m3 -3l-3 3l3 3`;
  return [path, x - 9, rows > 1 ? (from + to) / 2 : from + 9 * down];
}

function lagText(one: Connection): string {
  if (one.lag.events === 0) return "";
  const age = one.lag_age_seconds === null || one.lag_age_seconds < 0.1 ? "" : `, ${one.lag_age_is_least ? "≥ " : ""}${seconds(one.lag_age_seconds)}`;
  return `${count(one.lag.events)} behind${age}`;
}

/** A sender says only that something holds it up: this connection, or another one, an external system, or the log. */
const holdsUp = (one: Connection, sender: Group | Whole): boolean => (sender.blocked ?? 0) >= HELD_UP && (one.fullness ?? 0) >= FULL;

function pressureOf(one: Connection, holds: boolean, receiver: Group | Whole): Pressure {
  if (one.lag.events === 0) return "none";
  if (STOPPED.has(receiver.state)) return "stopped";
  return holds || (one.lag_age_seconds ?? 0) >= OLD_SECONDS ? "held" : "some";
}

const NODE_TYPES = { box: GroupBox };
const EDGE_TYPES = { lag: LagLine };
