// A client from openapi-generator's `csharp` (library `httpclient`). Usage: client URL TOPIC

using System;
using System.Collections.Generic;
using Newtonsoft.Json;
using Newtonsoft.Json.Linq;
using Oncelog.Api;
using Oncelog.Client;
using Oncelog.Model;

static class Program
{
    static string Decide(Problem problem)
    {
        switch (problem.Retry)
        {
            case Retry.Same:
            case Retry.Later:
                return "send it again";
            case Retry.Reopen:
                return "open the session again";
            default:
                return problem.Code == ErrorCode.ProducerFenced
                    ? "stop: a newer session is open" : "change the request";
        }
    }

    // The word that stands for the enum in JSON.
    static string Word(object value) => JToken.FromObject(value).ToString();

    static void Main(string[] arguments)
    {
        var (url, topic) = (arguments[0], arguments[1]);
        // A field that is not set is left out: as null, `value` is a value beside `value_base64`.
        var client = new ApiClient(url);
        client.SerializerSettings.NullValueHandling = NullValueHandling.Ignore;
        var at = new Configuration { BasePath = url };
        var sessions = new SessionsApi(client, client, at);
        var appends = new AppendsApi(client, client, at);

        new TopicsApi(client, client, at).PutTopic(topic, new PutTopic(partitionCount: 1));
        var named = new OpenSession(transactionalId: topic);
        var session = sessions.OpenSession(openSession: named);
        Console.WriteLine($"session: epoch {session.Epoch}");

        var records = new List<Record>
        {
            new Record(key: "customer-7", value: new { total = 12.5 }),
            new Record(valueBase64: "AAEC"),
        };
        var batch = new Append(session.ProducerId, session.Epoch, 0, records: records);
        foreach (var attempt in new[] { "append", "repeat" })
        {
            var placed = appends.AppendToTopic(topic, batch);
            var duplicate = placed.Duplicate ? "true" : "false";
            Console.WriteLine($"{attempt}: {placed.Offsets.Count} records, duplicate {duplicate}");
        }

        var read = new ReadsApi(client, client, at).ReadPartition(topic, 0, "0");
        var total = ((JObject)read.Records[0].Value)["total"];
        Console.WriteLine($"read: {read.Records.Count} records, total {total}");

        var invoiced = new List<Record> { new Record(value: "invoiced") };
        var last = new TransactionAppend(topic: topic, records: invoiced);
        var all = new List<TransactionAppend> { last };
        var done = new TransactionsApi(client, client, at)
            .BeginTransaction("evt-" + topic, new BeginTransaction(commit: true, appends: all));
        Console.WriteLine($"transaction: {Word(done.State)}, {done.Appends[0].RecordCount} record");

        sessions.OpenSession(openSession: named);
        batch.Sequence = 1;
        try
        {
            appends.AppendToTopic(topic, batch);
        }
        catch (ApiException refused)
        {
            var problem = JsonConvert.DeserializeObject<Problem>((string)refused.ErrorContent);
            Console.WriteLine(
                $"refusal: {Word(problem.Code)}, {Word(problem.Retry)}: {Decide(problem)}");
        }
    }
}
