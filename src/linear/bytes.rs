//! Bytes that a layer owns, or shares with others.

use std::fmt;
use std::sync::Arc;

/// Bytes of a [`Linear`](crate::Linear) in host memory: owned, or shared with whoever else holds them. A clone shares.
///
/// ```
/// use std::sync::Arc;
/// use nvfp4_gemv::Bytes;
/// let owned = Bytes::from(vec![0u8; 8]);
/// let file: Arc<Vec<u8>> = Arc::new(vec![1; 8]); // a mapped file, for example
/// let shared = Bytes::sharing(file.clone());
/// assert_eq!(shared.get(), &file[..]);
/// # drop(owned);
/// ```
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    len: usize,
}

impl Bytes {
    /// The bytes of an owner that is kept with them.
    pub fn sharing(owner: Arc<impl AsRef<[u8]> + Send + Sync + 'static>) -> Self {
        let len = (*owner).as_ref().len();
        Self { owner, len }
    }

    /// The bytes.
    ///
    /// # Panics
    /// If the owner gives fewer bytes than it did when this was made.
    pub fn get(&self) -> &[u8] {
        &(*self.owner).as_ref()[..self.len]
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::sharing(Arc::new(bytes))
    }
}

impl From<Arc<[u8]>> for Bytes {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self::sharing(Arc::new(bytes))
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}
