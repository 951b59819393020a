package peers;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Instant;
import java.util.Locale;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.util.Collector;

/** The records of a block of the file. Notes how many have been read by when, at the begin and at the end of each minute. */
public class Reading extends RichFlatMapFunction<Long, Tuple3<Long, Long, Long>> {
    private static final int RECORD_BYTES = 3 * Long.BYTES;

    private final Settings settings;
    private transient FileChannel file;
    private transient ByteBuffer block;

    public Reading(Settings settings) {
        this.settings = settings;
    }

    @Override
    public void open(OpenContext context) throws Exception {
        file = FileChannel.open(Path.of(settings.file), StandardOpenOption.READ);
        block = ByteBuffer.allocateDirect(Settings.BLOCK * RECORD_BYTES);
    }

    @Override
    public void flatMap(Long number, Collector<Tuple3<Long, Long, Long>> out) throws Exception {
        if (number == 0) {
            note(0);
        }
        long begin = number * Settings.BLOCK;
        int records = (int) Math.min(Settings.BLOCK, settings.records - begin);
        block.clear().limit(records * RECORD_BYTES);
        while (block.hasRemaining()) {
            if (file.read(block, begin * RECORD_BYTES + block.position()) < 0) {
                throw new IOException("the file is shorter than " + settings.records + " records");
            }
        }
        block.flip();
        long end = begin + records;
        if (end % settings.windowRecords == 0 || end == settings.records) {
            note(end);
        }
        for (int record = 0; record < records; record++) {
            out.collect(Tuple3.of(block.getLong(), block.getLong(), block.getLong()));
        }
    }

    @Override
    public void close() throws Exception {
        if (file != null) {
            file.close();
        }
    }

    private void note(long count) throws IOException {
        Instant now = Instant.now();
        String line = String.format(Locale.ROOT, "%d %d.%09d%n", count, now.getEpochSecond(), now.getNano());
        Files.writeString(Path.of(settings.reads), line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }
}
