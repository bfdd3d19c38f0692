import static io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS;
import static io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder.KEY;

import com.sun.management.OperatingSystemMXBean;
import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Confluent's Parallel Consumer with a handler that only sleeps.
 *
 * <p>Arguments: bootstrap servers and topic. Says "ready", then makes one run for each line of its input: the
 * group, the workers, the handler's milliseconds, and the milliseconds to settle and to measure. It answers with
 * the records of the measured time, that time and its processor time in nanoseconds, and the records of the run.
 * All runs are in one process: the first ones find code that is not compiled yet.
 */
public class Peer {
    private static final Duration JOIN = Duration.ofSeconds(60);
    /** Its default, 2, grows while it runs: with 1 ms and 256 workers it has not grown after 3 s. */
    private static final int LOAD = 50;
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    public static void main(String[] arguments) throws Exception {
        System.out.println("ready");
        Scanner input = new Scanner(System.in);
        while (input.hasNext()) {
            System.out.println(run(arguments[0], arguments[1], input));
        }
        System.exit(0);
    }

    private static String run(String bootstrap, String topic, Scanner input) throws Exception {
        String group = input.next();
        int workers = input.nextInt();
        long handler = input.nextLong();
        long settle = input.nextLong();
        long measure = input.nextLong();
        LongAdder done = new LongAdder();
        ParallelStreamProcessor<byte[], byte[]> processor =
                ParallelStreamProcessor.createEosStreamProcessor(
                        ParallelConsumerOptions.<byte[], byte[]>builder()
                                .consumer(new KafkaConsumer<>(settings(bootstrap, group)))
                                .ordering(KEY)
                                .maxConcurrency(workers)
                                .initialLoadFactor(LOAD)
                                .commitMode(PERIODIC_CONSUMER_ASYNCHRONOUS)
                                .build());
        processor.subscribe(List.of(topic));
        processor.poll(
                record -> {
                    sleep(handler);
                    done.increment();
                });
        long end = System.nanoTime() + JOIN.toNanos();
        while (done.sum() == 0) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("no record arrived");
            }
            Thread.sleep(5);
        }
        Thread.sleep(settle);
        long records = done.sum();
        long wall = System.nanoTime();
        long cpu = SYSTEM.getProcessCpuTime();
        Thread.sleep(measure);
        records = done.sum() - records;
        wall = System.nanoTime() - wall;
        cpu = SYSTEM.getProcessCpuTime() - cpu;
        processor.closeDontDrainFirst();
        return records + " " + wall + " " + cpu + " " + done.sum();
    }

    private static Map<String, Object> settings(String bootstrap, String group) {
        return Map.of(
                "bootstrap.servers", bootstrap,
                "group.id", group,
                "auto.offset.reset", "earliest",
                "enable.auto.commit", false,
                "key.deserializer", ByteArrayDeserializer.class,
                "value.deserializer", ByteArrayDeserializer.class);
    }

    private static void sleep(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
