use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cudarc::cublas::sys;

use super::stream::outside_captures;
use super::{Buffer, Cuda, Stream, library};
use crate::device::telemetry::Counters;
use crate::device::{DeviceError, Telemetry};

/// Workspace of every handle, in bytes: what cuBLAS advises for Hopper. Fixed, so that captured graphs and results do
/// not depend on what else runs.
const WORKSPACE: usize = 32 << 20;

/// Plain or transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    None,
    Transposed,
}

/// The triangle of a column-major matrix that a call reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Triangle {
    Lower,
    Upper,
}

/// cuBLAS on one stream, in f64. Matrices are column-major: (address, leading dimension).
///
/// Lengths are the caller's to get right: these are thin wrappers, `unsafe` for that reason.
pub struct Blas {
    handle: sys::cublasHandle_t,
    cuda: Cuda,
    counters: Arc<Counters>,
    /// The one scratch of this handle, kept alive for it.
    _workspace: Buffer<u8>,
}

// SAFETY: a handle may move between threads; `&self` calls from two at once are excluded by `!Sync`.
unsafe impl Send for Blas {}

/// An operand: address of the first element and leading dimension.
pub type Matrix = (u64, usize);

impl Blas {
    pub fn new(stream: &Stream) -> Result<Self, DeviceError> {
        library::cublas()?;
        let cuda = stream.cuda();
        cuda.bind()?;
        let workspace = Buffer::<u8>::new(cuda, WORKSPACE)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is there; the stream and the workspace live as long as the handle is used.
        unsafe {
            check("cublasCreate", outside_captures(|| sys::cublasCreate_v2(&mut handle)))?;
            stream.count(Telemetry { handles: 1, ..Telemetry::default() });
            let blas = Self {
                handle,
                cuda: cuda.clone(),
                counters: stream.counters().clone(),
                _workspace: workspace,
            };
            check("cublasSetStream", sys::cublasSetStream_v2(handle, stream.raw().cast()))?;
            let address = blas._workspace.address() as *mut c_void;
            check("cublasSetWorkspace", sys::cublasSetWorkspace_v2(handle, address, WORKSPACE))?;
            let never = sys::cublasAtomicsMode_t::CUBLAS_ATOMICS_NOT_ALLOWED;
            check("cublasSetAtomicsMode", sys::cublasSetAtomicsMode(handle, never))?;
            Ok(blas)
        }
    }

    /// Plans products for all but `count` of the card's multiprocessors: a product that waits for one that a long kernel of
    /// another stream holds takes twice as long.
    pub fn leave(&self, count: u32) -> Result<(), DeviceError> {
        self.cuda.bind()?;
        let target = self.cuda.multiprocessors().saturating_sub(count).max(1);
        // SAFETY: the handle is alive.
        check("cublasSetSmCountTarget", unsafe { sys::cublasSetSmCountTarget(self.handle, target as c_int) })
    }

    /// `C ← α·op(A)·op(B) + β·C`, with `shape` = (rows of C, columns of C, inner length).
    ///
    /// # Safety
    /// The operands cover what the shape says.
    pub unsafe fn gemm(
        &self,
        (op_a, op_b): (Op, Op),
        (m, n, k): (usize, usize, usize),
        (alpha, beta): (f64, f64),
        a: Matrix,
        b: Matrix,
        c: Matrix,
    ) -> Result<(), DeviceError> {
        self.count()?;
        // SAFETY: the caller vouches for the operands; scalars are read before the call returns.
        check("cublasDgemm", unsafe {
            sys::cublasDgemm_v2(
                self.handle,
                op(op_a),
                op(op_b),
                m as c_int,
                n as c_int,
                k as c_int,
                &alpha,
                a.0 as *const f64,
                a.1 as c_int,
                b.0 as *const f64,
                b.1 as c_int,
                &beta,
                c.0 as *mut f64,
                c.1 as c_int,
            )
        })
    }

    /// The same as [`Self::gemm`] in f32, every product and sum rounded to f32 and no further.
    ///
    /// # Safety
    /// As for [`Self::gemm`].
    pub unsafe fn gemm_f32(
        &self,
        (op_a, op_b): (Op, Op),
        (m, n, k): (usize, usize, usize),
        (alpha, beta): (f32, f32),
        a: Matrix,
        b: Matrix,
        c: Matrix,
    ) -> Result<(), DeviceError> {
        self.count()?;
        // SAFETY: as for `gemm`.
        check("cublasSgemm", unsafe {
            sys::cublasSgemm_v2(
                self.handle,
                op(op_a),
                op(op_b),
                m as c_int,
                n as c_int,
                k as c_int,
                &alpha,
                a.0 as *const f32,
                a.1 as c_int,
                b.0 as *const f32,
                b.1 as c_int,
                &beta,
                c.0 as *mut f32,
                c.1 as c_int,
            )
        })
    }

    /// The same as [`Self::gemm_f32`] on tensor cores: operands are rounded to TF32, 10 bits behind the leading one, sums
    /// are f32.
    ///
    /// # Safety
    /// As for [`Self::gemm`].
    pub unsafe fn gemm_tf32(
        &self,
        (op_a, op_b): (Op, Op),
        (m, n, k): (usize, usize, usize),
        (alpha, beta): (f32, f32),
        a: Matrix,
        b: Matrix,
        c: Matrix,
    ) -> Result<(), DeviceError> {
        self.count()?;
        let f32 = sys::cudaDataType::CUDA_R_32F;
        // SAFETY: as for `gemm`.
        check("cublasGemmEx", unsafe {
            sys::cublasGemmEx(
                self.handle,
                op(op_a),
                op(op_b),
                m as c_int,
                n as c_int,
                k as c_int,
                (&raw const alpha).cast(),
                a.0 as *const c_void,
                f32,
                a.1 as c_int,
                b.0 as *const c_void,
                f32,
                b.1 as c_int,
                (&raw const beta).cast(),
                c.0 as *mut c_void,
                f32,
                c.1 as c_int,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        })
    }

    /// `C_i ← α·op(A_i)·op(B_i) + β·C_i` for `count` products of one shape, the operands of each `strides` numbers
    /// behind those of the one before.
    ///
    /// # Safety
    /// The operands cover what shape, strides and count say.
    pub unsafe fn gemm_batch(
        &self,
        (op_a, op_b): (Op, Op),
        (m, n, k): (usize, usize, usize),
        (alpha, beta): (f64, f64),
        [a, b, c]: [Matrix; 3],
        strides: [usize; 3],
        count: usize,
    ) -> Result<(), DeviceError> {
        self.count()?;
        let [step_a, step_b, step_c] = strides.map(|step| step as i64);
        // SAFETY: as for `gemm`.
        check("cublasDgemmStridedBatched", unsafe {
            sys::cublasDgemmStridedBatched(
                self.handle,
                op(op_a),
                op(op_b),
                m as c_int,
                n as c_int,
                k as c_int,
                &alpha,
                a.0 as *const f64,
                a.1 as c_int,
                step_a,
                b.0 as *const f64,
                b.1 as c_int,
                step_b,
                &beta,
                c.0 as *mut f64,
                c.1 as c_int,
                step_c,
                count as c_int,
            )
        })
    }

    /// `y ← α·op(A)·x + β·y` for an A of `rows` x `columns`.
    ///
    /// # Safety
    /// The operands cover what the sizes say.
    pub unsafe fn gemv(
        &self,
        op_a: Op,
        (rows, columns): (usize, usize),
        (alpha, beta): (f64, f64),
        a: Matrix,
        x: u64,
        y: u64,
    ) -> Result<(), DeviceError> {
        self.count()?;
        // SAFETY: as for `gemm`.
        check("cublasDgemv", unsafe {
            sys::cublasDgemv_v2(
                self.handle,
                op(op_a),
                rows as c_int,
                columns as c_int,
                &alpha,
                a.0 as *const f64,
                a.1 as c_int,
                x as *const f64,
                1,
                &beta,
                y as *mut f64,
                1,
            )
        })
    }

    /// `X ← op(T)⁻¹·X` for a triangular T of order `n` and `columns` right-hand sides.
    ///
    /// # Safety
    /// The operands cover what the sizes say.
    pub unsafe fn trsm(
        &self,
        triangle: Triangle,
        op_t: Op,
        (n, columns): (usize, usize),
        t: Matrix,
        x: Matrix,
    ) -> Result<(), DeviceError> {
        self.count()?;
        // SAFETY: as for `gemm`.
        check("cublasDtrsm", unsafe {
            sys::cublasDtrsm_v2(
                self.handle,
                sys::cublasSideMode_t::CUBLAS_SIDE_LEFT,
                fill(triangle),
                op(op_t),
                sys::cublasDiagType_t::CUBLAS_DIAG_NON_UNIT,
                n as c_int,
                columns as c_int,
                &1.0,
                t.0 as *const f64,
                t.1 as c_int,
                x.0 as *mut f64,
                x.1 as c_int,
            )
        })
    }

    fn count(&self) -> Result<(), DeviceError> {
        self.counters.add(Telemetry { launches: 1, ..Telemetry::default() });
        self.cuda.bind()
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if self.cuda.bind().is_ok() {
            // SAFETY: created in `new`, destroyed once.
            outside_captures(|| unsafe { sys::cublasDestroy_v2(self.handle) });
        }
    }
}

fn op(op: Op) -> sys::cublasOperation_t {
    match op {
        Op::None => sys::cublasOperation_t::CUBLAS_OP_N,
        Op::Transposed => sys::cublasOperation_t::CUBLAS_OP_T,
    }
}

fn fill(triangle: Triangle) -> sys::cublasFillMode_t {
    match triangle {
        Triangle::Lower => sys::cublasFillMode_t::CUBLAS_FILL_MODE_LOWER,
        Triangle::Upper => sys::cublasFillMode_t::CUBLAS_FILL_MODE_UPPER,
    }
}

fn check(call: &'static str, status: sys::cublasStatus_t) -> Result<(), DeviceError> {
    if status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(DeviceError::Call { call, code: format!("{status:?}"), text: "reported by cuBLAS".to_owned() })
}
