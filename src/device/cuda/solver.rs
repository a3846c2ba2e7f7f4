use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cudarc::cusolver::sys;

use super::blas::{Blas, Matrix};
use super::stream::outside_captures;
use super::{Buffer, Cuda, Stream, library};
use crate::device::telemetry::Counters;
use crate::device::{DeviceError, Telemetry};

/// cuSOLVER on one stream: dense Cholesky in f64, symmetric eigenpairs in both precisions.
pub struct Solver {
    handle: sys::cusolverDnHandle_t,
    cuda: Cuda,
    counters: Arc<Counters>,
}

// SAFETY: a handle may move between threads; `&self` calls from two at once are excluded by `!Sync`.
unsafe impl Send for Solver {}

impl Solver {
    pub fn new(stream: &Stream) -> Result<Self, DeviceError> {
        library::cusolver()?;
        let cuda = stream.cuda();
        cuda.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is there; the stream lives as long as the handle is used.
        unsafe {
            check("cusolverDnCreate", outside_captures(|| sys::cusolverDnCreate(&mut handle)))?;
            stream.count(Telemetry { handles: 1, ..Telemetry::default() });
            let solver = Self { handle, cuda: cuda.clone(), counters: stream.counters().clone() };
            check("cusolverDnSetStream", sys::cusolverDnSetStream(handle, stream.raw().cast()))?;
            Ok(solver)
        }
    }

    /// Doubles of scratch that [`Self::potrf`] needs for order `n`.
    pub fn potrf_scratch(&self, n: usize) -> Result<usize, DeviceError> {
        self.cuda.bind()?;
        let mut len = 0;
        // SAFETY: the matrix is not read by this query.
        check("cusolverDnDpotrf_bufferSize", unsafe {
            let none = std::ptr::null_mut();
            sys::cusolverDnDpotrf_bufferSize(self.handle, LOWER, n as c_int, none, n as c_int, &mut len)
        })?;
        Ok(len as usize)
    }

    /// Cholesky factor of the lower triangle of a column-major matrix of order `n`, in place. `info` gets 0, or one
    /// plus the index of the first pivot that is not positive.
    ///
    /// # Safety
    /// The matrix covers n x n; the scratch (address and numbers) has the length that [`Self::potrf_scratch`] gives, and
    /// `info` is the address of an `int`.
    pub unsafe fn potrf(
        &self,
        n: usize,
        matrix: Matrix,
        (scratch, len): (u64, usize),
        info: u64,
    ) -> Result<(), DeviceError> {
        self.cuda.bind()?;
        self.counters.add(Telemetry { launches: 1, ..Telemetry::default() });
        // SAFETY: the caller vouches for the matrix; the rest are live buffers.
        check("cusolverDnDpotrf", unsafe {
            sys::cusolverDnDpotrf(
                self.handle,
                LOWER,
                n as c_int,
                matrix.0 as *mut f64,
                matrix.1 as c_int,
                scratch as *mut f64,
                len as c_int,
                info as *mut c_int,
            )
        })
    }
}

/// A symmetric matrix on a card, and where its eigenvalues go.
#[derive(Clone, Copy, Debug)]
pub struct Eigenproblem {
    pub order: usize,
    /// Address of n x n numbers, column-major, the lower triangle read; then the eigenvectors, of 2-norm 1, one after
    /// another
    pub matrix: u64,
    /// Address of n numbers, ascending
    pub values: u64,
}

/// Bytes that [`Solver::eigen`] works in.
pub struct EigenScratch {
    device: Buffer<u8>,
    host: Vec<u8>,
    /// 0, or how many values did not converge.
    pub info: Buffer<i32>,
}

impl Solver {
    /// Scratch for the eigenpairs of a matrix of this order.
    pub fn eigen_scratch(&self, problem: Eigenproblem) -> Result<EigenScratch, DeviceError> {
        self.cuda.bind()?;
        let Eigenproblem { order, matrix, values } = problem;
        let (n, none) = (order as i64, std::ptr::null_mut());
        let (mut device, mut host) = (0, 0);
        let (a, w) = (matrix as *const c_void, values as *const c_void);
        // SAFETY: a query; the matrix is not read.
        check("cusolverDnXsyevd_bufferSize", unsafe {
            sys::cusolverDnXsyevd_bufferSize(
                self.handle,
                none,
                VECTORS,
                LOWER,
                n,
                F64,
                a,
                n,
                F64,
                w,
                F64,
                &mut device,
                &mut host,
            )
        })?;
        let info = Buffer::new(&self.cuda, 1)?;
        Ok(EigenScratch { device: Buffer::new(&self.cuda, device)?, host: vec![0; host], info })
    }

    /// Eigenvalues and eigenvectors; the vectors take the matrix's place.
    ///
    /// # Safety
    /// Matrix and values cover what the problem says; the scratch was made for its order.
    pub unsafe fn eigen(&self, problem: Eigenproblem, scratch: &mut EigenScratch) -> Result<(), DeviceError> {
        self.cuda.bind()?;
        self.counters.add(Telemetry { launches: 1, ..Telemetry::default() });
        let Eigenproblem { order, matrix, values } = problem;
        let (n, none) = (order as i64, std::ptr::null_mut());
        // SAFETY: the caller vouches for the matrix; the rest are live buffers.
        check("cusolverDnXsyevd", unsafe {
            sys::cusolverDnXsyevd(
                self.handle,
                none,
                VECTORS,
                LOWER,
                n,
                F64,
                matrix as *mut c_void,
                n,
                F64,
                values as *mut c_void,
                F64,
                scratch.device.address() as *mut c_void,
                scratch.device.len(),
                scratch.host.as_mut_ptr().cast(),
                scratch.host.len(),
                scratch.info.address() as *mut c_int,
            )
        })
    }
}

const VECTORS: sys::cusolverEigMode_t = sys::cusolverEigMode_t::CUSOLVER_EIG_MODE_VECTOR;

const F64: sys::cudaDataType = sys::cudaDataType::CUDA_R_64F;

const LOWER: sys::cublasFillMode_t = sys::cublasFillMode_t::CUBLAS_FILL_MODE_LOWER;

impl Drop for Solver {
    fn drop(&mut self) {
        if self.cuda.bind().is_ok() {
            // SAFETY: created in `new`, destroyed once.
            outside_captures(|| unsafe { sys::cusolverDnDestroy(self.handle) });
        }
    }
}

/// Order of an eigenproblem whose kernels are those of larger ones.
const WARM_ORDER: usize = 256;

/// Loads both libraries and the kernels of an eigenproblem: what is used first would wait for them, half a second in all.
pub fn open_libraries(cuda: &Cuda) -> Result<(), DeviceError> {
    let stream = Stream::new(cuda)?;
    Blas::new(&stream)?;
    let solver = Solver::new(&stream)?;
    let [matrix, values] = [WARM_ORDER * WARM_ORDER, WARM_ORDER].map(|len| Buffer::<f64>::new(cuda, len));
    let (matrix, values) = (matrix?, values?);
    // All numbers alike, not 0: a matrix without any takes another way.
    matrix.fill_bytes(&stream, 0x3f)?;
    let problem = Eigenproblem { order: WARM_ORDER, matrix: matrix.address(), values: values.address() };
    let mut scratch = solver.eigen_scratch(problem)?;
    // SAFETY: the buffers have these lengths and outlive the wait.
    unsafe { solver.eigen(problem, &mut scratch)? };
    stream.wait()
}

fn check(call: &'static str, status: sys::cusolverStatus_t) -> Result<(), DeviceError> {
    if status == sys::cusolverStatus_t::CUSOLVER_STATUS_SUCCESS {
        return Ok(());
    }
    Err(DeviceError::Call { call, code: format!("{status:?}"), text: "reported by cuSOLVER".to_owned() })
}
