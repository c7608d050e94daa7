//! The types of database work: what a caller gives, and what it gets.

use sqlx::PgConnection;

/// A unit of work on one connection: an async closure whose future can go to another thread.
pub trait Work<T, E>:
    AsyncFnOnce(&mut PgConnection) -> Result<T, E> + for<'c> SendWork<'c, T, E> + Send + 'static
{
}
impl<T, E, F> Work<T, E> for F where
    F: AsyncFnOnce(&mut PgConnection) -> Result<T, E> + for<'c> SendWork<'c, T, E> + Send + 'static
{
}

/// Names the future of work, because the bound `AsyncFnOnce` alone cannot say that it is `Send`.
pub trait SendWork<'c, T, E>: FnOnce(&'c mut PgConnection) -> Self::Running {
    type Running: Future<Output = Result<T, E>> + Send;
}
impl<'c, T, E, F, R> SendWork<'c, T, E> for F
where
    F: FnOnce(&'c mut PgConnection) -> R,
    R: Future<Output = Result<T, E>> + Send,
{
    type Running = R;
}

/// The result of work.
pub trait Done<T, E>: Future<Output = Result<T, E>> + Send + 'static {}
impl<T, E, F: Future<Output = Result<T, E>> + Send + 'static> Done<T, E> for F {}
