package peers;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.NavigableMap;
import java.util.TreeMap;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.util.Collector;

/**
 * Rows are part of the checkpoint, as in a write-ahead log, and are written in one transaction when it is complete. Who takes
 * over writes those of its checkpoint once more; the key of the table sees to it that they are there once.
 */
public class Writing extends RichFlatMapFunction<Tuple4<Long, Long, Long, Long>, Tuple4<Long, Long, Long, Long>>
        implements CheckpointedFunction, CheckpointListener {
    private static final String INSERT = "INSERT INTO %s (minute, key, records, cents) "
            + "VALUES (to_timestamp(?::float8 / 1000) AT TIME ZONE 'UTC', ?, ?, ?) ON CONFLICT (minute, key) DO NOTHING";

    private final Settings settings;
    private transient List<Tuple4<Long, Long, Long, Long>> made;
    /** Checkpoint → the rows that were made before it, and after the one before. */
    private transient NavigableMap<Long, List<Tuple4<Long, Long, Long, Long>>> checkpointed;
    private transient ListState<Tuple4<Long, Long, Long, Long>> state;
    private transient Connection warehouse;

    public Writing(Settings settings) {
        this.settings = settings;
    }

    @Override
    public void initializeState(FunctionInitializationContext context) throws Exception {
        state = context.getOperatorStateStore().getListState(new ListStateDescriptor<>(
                "rows", Types.TUPLE(Types.LONG, Types.LONG, Types.LONG, Types.LONG)));
        made = new ArrayList<>();
        checkpointed = new TreeMap<>();
        warehouse = DriverManager.getConnection(settings.warehouse);
        warehouse.setAutoCommit(false);
        List<Tuple4<Long, Long, Long, Long>> found = new ArrayList<>();
        state.get().forEach(found::add);
        write(found);
    }

    @Override
    public void flatMap(Tuple4<Long, Long, Long, Long> row, Collector<Tuple4<Long, Long, Long, Long>> out) {
        made.add(row);
    }

    @Override
    public void snapshotState(FunctionSnapshotContext context) throws Exception {
        checkpointed.put(context.getCheckpointId(), made);
        made = new ArrayList<>();
        state.update(all(checkpointed.values()));
    }

    @Override
    public void notifyCheckpointComplete(long checkpoint) throws Exception {
        NavigableMap<Long, List<Tuple4<Long, Long, Long, Long>>> complete = checkpointed.headMap(checkpoint, true);
        write(all(complete.values()));
        complete.clear();
    }

    @Override
    public void close() throws Exception {
        if (warehouse != null) {
            warehouse.close();
        }
    }

    private void write(List<Tuple4<Long, Long, Long, Long>> rows) throws SQLException {
        if (rows.isEmpty()) {
            return;
        }
        try (PreparedStatement insert = warehouse.prepareStatement(String.format(INSERT, settings.table))) {
            for (Tuple4<Long, Long, Long, Long> row : rows) {
                for (int column = 0; column < row.getArity(); column++) {
                    insert.setLong(column + 1, row.getField(column));
                }
                insert.addBatch();
            }
            insert.executeBatch();
        }
        warehouse.commit();
    }

    private static List<Tuple4<Long, Long, Long, Long>> all(
            Collection<List<Tuple4<Long, Long, Long, Long>>> lists) {
        List<Tuple4<Long, Long, Long, Long>> found = new ArrayList<>();
        lists.forEach(found::addAll);
        return found;
    }
}
