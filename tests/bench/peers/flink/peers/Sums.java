package peers;

import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.streaming.api.functions.windowing.WindowFunction;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/** Records and cents of a key in a minute. */
public final class Sums {
    private Sums() {}

    /** As records come, so that no window holds them. */
    public static class Adding
            implements AggregateFunction<Tuple3<Long, Long, Long>, Tuple2<Long, Long>, Tuple2<Long, Long>> {
        @Override
        public Tuple2<Long, Long> createAccumulator() {
            return Tuple2.of(0L, 0L);
        }

        @Override
        public Tuple2<Long, Long> add(Tuple3<Long, Long, Long> record, Tuple2<Long, Long> sums) {
            sums.f0 += 1;
            sums.f1 += record.f2;
            return sums;
        }

        @Override
        public Tuple2<Long, Long> getResult(Tuple2<Long, Long> sums) {
            return sums;
        }

        @Override
        public Tuple2<Long, Long> merge(Tuple2<Long, Long> one, Tuple2<Long, Long> other) {
            return Tuple2.of(one.f0 + other.f0, one.f1 + other.f1);
        }
    }

    /** Puts minute and key before them. */
    public static class Naming
            implements WindowFunction<Tuple2<Long, Long>, Tuple4<Long, Long, Long, Long>, Long, TimeWindow> {
        @Override
        public void apply(
                Long key,
                TimeWindow window,
                Iterable<Tuple2<Long, Long>> found,
                Collector<Tuple4<Long, Long, Long, Long>> out) {
            for (Tuple2<Long, Long> sums : found) {
                out.collect(Tuple4.of(window.getStart(), key, sums.f0, sums.f1));
            }
        }
    }
}
