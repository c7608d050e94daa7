// Prints kafka_partitions.ndjson: where Kafka's own Java client puts a key. Run with JDK 17 from this folder:
//
//   mvn -q dependency:copy -Dartifact=org.apache.kafka:kafka-clients:3.9.1 -DoutputDirectory=/tmp/kafka
//   mvn -q dependency:copy -Dartifact=org.slf4j:slf4j-api:1.7.36 -DoutputDirectory=/tmp/kafka
//   java -cp '/tmp/kafka/*' KafkaVectors.java > kafka_partitions.ndjson
//
// A row: the key, murmur2 of its UTF-8 bytes as Java's signed int, and the partition among 1, 2, 3, 12, 16
// and 1000. The seed is fixed, so the output is the same every time.

import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Utils;

public class KafkaVectors {
    static final int[] COUNTS = {1, 2, 3, 12, 16, 1000};

    public static void main(String[] args) {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        try (StringSerializer serializer = new StringSerializer()) {
            for (String key : keys()) {
                byte[] bytes = serializer.serialize("topic", key);
                StringBuilder partitions = new StringBuilder();
                for (int count : COUNTS) {
                    if (partitions.length() > 0) partitions.append(',');
                    partitions.append(BuiltInPartitioner.partitionForKey(bytes, count));
                }
                out.printf("{\"key\":%s,\"murmur2\":%d,\"partitions\":[%s]}\n",
                    json(key), Utils.murmur2(bytes), partitions);
            }
        }
        out.flush();
    }

    static List<String> keys() {
        List<String> keys = new ArrayList<>(List.of("", "\0", "\u007f", "\u0080", "\"\\\n\t", "21", "foobar",
            "a-little-bit-long-string", "a-little-bit-longer-string", "customer-7",
            "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", "ä", "äö", "Straße", "日本語", "ключ", "مفتاح", "😀",
            "😀😀", "a😀", "👩‍👩‍👧‍👦", "e\u0301", "\u00e9", "\ufeff", "\uffff"));
        // Every length around the four-byte blocks, with every tail.
        for (int length = 1; length <= 40; length++) {
            keys.add("abcdefghijklmnopqrstuvwxyz0123456789ABCD".substring(0, length));
            keys.add("\u00ff".repeat(length));
        }
        keys.add("x".repeat(255));
        keys.add("long ".repeat(200));
        keys.add("é😀".repeat(333));
        Random random = new Random(7);
        for (int i = 0; i < 100; i++) {
            keys.add("customer-" + random.nextInt(1_000_000));
        }
        while (keys.size() < 300) {
            StringBuilder key = new StringBuilder();
            for (int left = random.nextInt(24); left > 0; left--) {
                int limit = switch (random.nextInt(4)) { case 0 -> 0x80; case 1 -> 0x800; case 2 -> 0xd800; default -> 0x110000; };
                int point = random.nextInt(limit);
                if (point < 0xd800 || point > 0xdfff) key.appendCodePoint(point);
            }
            keys.add(key.toString());
        }
        return keys;
    }

    /** ASCII alone, so that no editor can change a key. */
    static String json(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c >= ' ' && c < 0x7f && c != '"' && c != '\\') out.append(c);
            else out.append(String.format("\\u%04x", (int) c));
        }
        return out.append('"').toString();
    }
}
