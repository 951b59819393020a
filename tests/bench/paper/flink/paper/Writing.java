package paper;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.NavigableMap;
import java.util.TreeMap;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.util.Collector;

/**
 * The operator that accumulates, writes a row and sends it: OP4, in use case 3 OP5.
 *
 * <p>Its rows are part of its checkpoint, as in a write-ahead log, and are written in one transaction when that checkpoint is
 * complete. Who takes over writes those of its checkpoint once more; the key of the table sees to it that they are there once.
 */
public class Writing extends Operator<Event, Row> implements CheckpointedFunction, CheckpointListener {
    private static final String INSERT = "INSERT INTO paper_results (batch, events, first, total, squares) "
            + "VALUES (?, ?, ?, ?, ?) ON CONFLICT (batch) DO NOTHING";

    private final boolean synchronizes;
    private transient List<Event> held;
    /** Of use case 2 with synchronized inputs: events of OP2. */
    private transient List<Event> beside;
    private transient List<Row> made;
    /** Checkpoint → the rows that were made before it, and after the one before. */
    private transient NavigableMap<Long, List<Row>> checkpointed;
    private transient long batch;
    private transient ListState<Event> heldState;
    private transient ListState<Event> besideState;
    private transient ListState<Row> rowsState;
    private transient ListState<Long> batchState;
    private transient Connection warehouse;

    public Writing(Settings settings, String name, boolean synchronizes) {
        super(settings, name);
        this.synchronizes = synchronizes;
    }

    @Override
    public void initializeState(FunctionInitializationContext context) throws Exception {
        heldState = Stateful.state(context, "held", Event.class);
        besideState = Stateful.state(context, "beside", Event.class);
        rowsState = Stateful.state(context, "rows", Row.class);
        batchState = Stateful.state(context, "batch", Long.class);
        held = Stateful.read(heldState);
        beside = Stateful.read(besideState);
        for (long each : Stateful.read(batchState)) {
            batch += each;
        }
        made = new ArrayList<>();
        checkpointed = new TreeMap<>();
        warehouse = DriverManager.getConnection(settings.warehouse);
        warehouse.setAutoCommit(false);
        write(Stateful.read(rowsState));
    }

    @Override
    public void flatMap(Event event, Collector<Row> out) throws Exception {
        marks.mayFail("op4", event.number / Stateful.WINDOW + 1, 0, 1);
        (synchronizes && event.quick ? beside : held).add(event);
        if (held.size() < settings.trigger || (synchronizes && beside.size() < settings.op2Trigger)) {
            return;
        }
        List<Event> window = taken(held, settings.trigger);
        if (synchronizes) {
            window.addAll(taken(beside, settings.op2Trigger));
        }
        Row row = Row.of(++batch, window);
        made.add(row);
        out.collect(row);
    }

    @Override
    public void snapshotState(FunctionSnapshotContext context) throws Exception {
        checkpointed.put(context.getCheckpointId(), made);
        made = new ArrayList<>();
        heldState.update(held);
        besideState.update(beside);
        rowsState.update(all(checkpointed.values()));
        batchState.update(List.of(batch));
    }

    @Override
    public void notifyCheckpointComplete(long checkpoint) throws Exception {
        NavigableMap<Long, List<Row>> complete = checkpointed.headMap(checkpoint, true);
        write(all(complete.values()));
        complete.clear();
    }

    @Override
    public void close() throws Exception {
        if (warehouse != null) {
            warehouse.close();
        }
    }

    private void write(List<Row> rows) throws SQLException {
        if (rows.isEmpty()) {
            return;
        }
        try (PreparedStatement insert = warehouse.prepareStatement(INSERT)) {
            for (Row row : rows) {
                long[] values = {row.batch, row.events, row.first, row.total, row.squares};
                for (int column = 0; column < values.length; column++) {
                    insert.setLong(column + 1, values[column]);
                }
                insert.addBatch();
            }
            insert.executeBatch();
        }
        warehouse.commit();
    }

    private static List<Event> taken(List<Event> events, int count) {
        List<Event> first = events.subList(0, count);
        List<Event> taken = new ArrayList<>(first);
        first.clear();
        return taken;
    }

    private static List<Row> all(Collection<List<Row>> lists) {
        List<Row> found = new ArrayList<>();
        lists.forEach(found::addAll);
        return found;
    }
}
