package kpsplit.examples;

import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.PartitionAssignorException;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;

/**
 * An assignment of one's own for a group of kpsplit consumers (KIP-848): members whose
 * {@code group.instance.id} begins with "small" get one key range of the topic each, all others share the
 * rest (the small ones share everything while there are no others).
 *
 * <p>A group divides the partitions of the slots topic {@code __kpsplit.slots.TOPIC}: of R key ranges to
 * each partition of the topic, its partition {@code p * R + r} is the r-th key range of partition p. Kafka
 * tells assignors no names of topics, only ids; here none is needed.
 *
 * <p>Compile it against the brokers' {@code kafka-group-coordinator-api} and {@code kafka-clients}, lay the
 * jar beside theirs, add the class to {@code group.consumer.assignors} (which names all that they have), and
 * give the members {@code group.remote.assignor=by-instance}.
 */
public final class ByInstance implements ConsumerGroupPartitionAssignor {

    @Override
    public String name() {
        return "by-instance";
    }

    @Override
    public GroupAssignment assign(GroupSpec group, SubscribedTopicDescriber topics)
            throws PartitionAssignorException {
        Map<String, Map<Uuid, Set<Integer>>> given = new HashMap<>();
        Map<Uuid, Set<String>> membersOf = new HashMap<>();
        for (String member : group.memberIds()) {
            given.put(member, new HashMap<>());
            for (Uuid topic : group.memberSubscription(member).subscribedTopicIds()) {
                membersOf.computeIfAbsent(topic, any -> new TreeSet<>()).add(member);
            }
        }
        membersOf.forEach((topic, members) -> divide(topic, topics.numPartitions(topic), members, group, given));
        Map<String, MemberAssignment> assignment = new HashMap<>();
        given.forEach((member, partitions) -> assignment.put(member, () -> partitions));
        return new GroupAssignment(assignment);
    }

    private static void divide(
            Uuid topic, int slots, Collection<String> members, GroupSpec group,
            Map<String, Map<Uuid, Set<Integer>>> given) {
        List<String> small = members.stream().filter(member -> isSmall(member, group)).toList();
        List<String> large = members.stream().filter(member -> !isSmall(member, group)).toList();
        for (int slot = 0; slot < slots; slot++) {
            boolean toSmall = slot < small.size() || large.isEmpty();
            List<String> takers = toSmall ? small : large;
            String taker = takers.get(slot % takers.size());
            given.get(taker).computeIfAbsent(topic, any -> new HashSet<>()).add(slot);
        }
    }

    private static boolean isSmall(String member, GroupSpec group) {
        return group.memberSubscription(member).instanceId().filter(id -> id.startsWith("small")).isPresent();
    }
}
