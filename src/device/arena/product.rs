use super::{Arena, Backend, View};

/// `C ← α·A·B + β·C`, for a library of the device. C overlaps neither A nor B.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    pub a: Operand,
    pub b: Operand,
    pub c: View,
    pub alpha: f32,
    pub beta: f32,
    pub precision: Precision,
}

/// How a library or a kernel may round the operands of products; sums are f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    #[default]
    F32,
    /// To 10 bits behind the leading one where the device has tensor cores, with f32's range.
    Tf32,
}

/// A matrix, or its transpose.
#[derive(Clone, Copy, Debug)]
pub enum Operand {
    Plain(View),
    Transposed(View),
}

impl Arena {
    /// Whether the device has tensor cores for kernels, and a library for products.
    pub fn has_tensor_cores(&self) -> bool {
        match &self.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(_) => true,
            _ => false,
        }
    }

    /// Queues a product on the device's library, in its precision.
    ///
    /// # Panics
    /// Where the device has none.
    pub fn product(&mut self, product: &Product) {
        match &mut self.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.product(product),
            _ => unreachable!("a product of {:?} without a library", product.c),
        }
    }
}
