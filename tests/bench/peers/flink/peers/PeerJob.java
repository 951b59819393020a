package peers;

import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;

/**
 * Sums per key and minute into PostgreSQL. Records are (key, microseconds, cents), rows (milliseconds, key, records, cents).
 *
 * <p>One thread reads, cleanses and converts; one sums up and writes. The source's checkpointed position is the number of the
 * next block of the file.
 */
public final class PeerJob {
    private static final TypeInformation<Tuple3<Long, Long, Long>> RECORD =
            Types.TUPLE(Types.LONG, Types.LONG, Types.LONG);
    private static final TypeInformation<Tuple4<Long, Long, Long, Long>> ROW =
            Types.TUPLE(Types.LONG, Types.LONG, Types.LONG, Types.LONG);

    private static final TypeInformation<Tuple2<Long, Long>> SUMS = Types.TUPLE(Types.LONG, Types.LONG);

    private PeerJob() {}

    public static void main(String[] arguments) throws Exception {
        Settings settings = new Settings(arguments[0]);
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment();
        environment.setParallelism(1);
        WatermarkStrategy<Tuple3<Long, Long, Long>> inOrder = WatermarkStrategy
                .<Tuple3<Long, Long, Long>>forMonotonousTimestamps()
                .withTimestampAssigner((record, before) -> record.f1 / 1_000);
        DataStream<Tuple3<Long, Long, Long>> records = environment
                .fromSource(
                        new NumberSequenceSource(0, settings.blocks() - 1), WatermarkStrategy.noWatermarks(), "blocks")
                .flatMap(new Reading(settings))
                .returns(RECORD)
                .filter(record -> record.f2 > 0)
                .map(record -> Tuple3.of(record.f0, record.f1, record.f2 + record.f2 * 19 / 100))
                .returns(RECORD)
                .assignTimestampsAndWatermarks(inOrder);
        records.keyBy(record -> record.f0, Types.LONG)
                .window(TumblingEventTimeWindows.of(Duration.ofMinutes(1)))
                .aggregate(new Sums.Adding(), new Sums.Naming(), SUMS, ROW)
                .flatMap(new Writing(settings))
                .returns(ROW)
                .sinkTo(new DiscardingSink<>());
        environment.execute("peer");
    }
}
