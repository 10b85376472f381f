//! stub, replaced soon: the contract of what is kept
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{operation}: {source}")]
    Sqlite { operation: &'static str, source: rusqlite::Error },
    #[error("{operation}: {source}")]
    Io { operation: &'static str, source: std::io::Error },
}
