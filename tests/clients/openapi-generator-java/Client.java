// A client from openapi-generator's `java` (library `native`). Usage: Client URL TOPIC

import java.util.List;
import java.util.Map;
import oncelog.ApiClient;
import oncelog.ApiException;
import oncelog.api.AppendsApi;
import oncelog.api.ReadsApi;
import oncelog.api.SessionsApi;
import oncelog.api.TopicsApi;
import oncelog.api.TransactionsApi;
import oncelog.model.Append;
import oncelog.model.BeginTransaction;
import oncelog.model.ErrorCode;
import oncelog.model.OpenSession;
import oncelog.model.Problem;
import oncelog.model.PutTopic;
import oncelog.model.Record;
import oncelog.model.TransactionAppend;

public class Client {
  static String decide(Problem problem) {
    switch (problem.getRetry()) {
      case SAME:
      case LATER:
        return "send it again";
      case REOPEN:
        return "open the session again";
      default:
        return problem.getCode() == ErrorCode.PRODUCER_FENCED
            ? "stop: a newer session is open" : "change the request";
    }
  }

  public static void main(String[] arguments) throws Exception {
    var topic = arguments[1];
    var client = new ApiClient();
    client.updateBaseUri(arguments[0]);
    var sessions = new SessionsApi(client);
    var appends = new AppendsApi(client);

    new TopicsApi(client).putTopic(topic, new PutTopic().partitionCount(1L));
    var named = new OpenSession().transactionalId(topic);
    var session = sessions.openSession(null, named);
    System.out.println("session: epoch " + session.getEpoch());

    var batch = new Append()
        .producerId(session.getProducerId())
        .epoch(session.getEpoch())
        .sequence(0L)
        .records(List.of(
            new Record().key("customer-7").value(Map.of("total", 12.5)),
            new Record().valueBase64("AAEC")));
    for (var attempt : List.of("append", "repeat")) {
      var done = appends.appendToTopic(topic, batch, null, null, null, null, null, null);
      System.out.printf("%s: %d records, duplicate %b%n",
          attempt, done.getOffsets().size(), done.getDuplicate());
    }

    var read = new ReadsApi(client).readPartition(topic, 0, "0", null, null, null, null, null);
    var value = (Map<?, ?>) read.getRecords().get(0).getValue();
    System.out.printf("read: %d records, total %s%n", read.getRecords().size(), value.get("total"));

    var invoiced =
        new TransactionAppend().topic(topic).addRecordsItem(new Record().value("invoiced"));
    var done = new TransactionsApi(client)
        .beginTransaction(
            "evt-" + topic, new BeginTransaction().commit(true).addAppendsItem(invoiced));
    System.out.printf("transaction: %s, %d record%n",
        done.getState(), done.getAppends().get(0).getRecordCount());

    sessions.openSession(null, named);
    try {
      appends.appendToTopic(topic, batch.sequence(1L), null, null, null, null, null, null);
    } catch (ApiException refused) {
      var problem = client.getObjectMapper().readValue(refused.getResponseBody(), Problem.class);
      System.out.printf("refusal: %s, %s: %s%n",
          problem.getCode(), problem.getRetry(), decide(problem));
    }
  }
}
