// The types of Polly, a library of retries, that the generated code names. Polly itself is only at
// NuGet, which this project's machines cannot reach, and it is called only by programs that set
// `RetryConfiguration`. With NuGet at hand leave this file out.

using System;
using System.Threading.Tasks;

namespace Polly
{
    public enum OutcomeType { Successful, Failure }

    public class PolicyResult<T>
    {
        public OutcomeType Outcome { get; set; }
        public T Result { get; set; }
        public Exception FinalException { get; set; }
    }

    public interface ISyncPolicy<T> { }

    public interface IAsyncPolicy<T>
    {
        Task<PolicyResult<T>> ExecuteAndCaptureAsync(Func<Task<T>> action);
    }
}
