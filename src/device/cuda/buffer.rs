use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::Relaxed;

use bytemuck::Pod;
use cudarc::driver::sys;

use super::{Cuda, Stream, check};
use crate::device::DeviceError;

/// `len` elements in device memory; freed when dropped. Fresh memory holds no defined values.
pub struct Buffer<T> {
    pointer: sys::CUdeviceptr,
    len: usize,
    cuda: Cuda,
    element: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// Errors: the figure and what is free when the card has too little memory.
    pub fn new(cuda: &Cuda, len: usize) -> Result<Self, DeviceError> {
        cuda.bind()?;
        let bytes = (len * size_of::<T>()).max(1);
        let mut pointer = 0;
        // SAFETY: a pointer to a live local.
        let result = unsafe { sys::cuMemAlloc_v2(&mut pointer, bytes) };
        if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(DeviceError::memory("a buffer", bytes as u64, cuda.free_memory()?));
        }
        check("cuMemAlloc", result)?;
        Ok(Self { pointer, len, cuda: cuda.clone(), element: PhantomData })
    }

    /// Uploads `values` and waits.
    pub fn from_slice(stream: &Stream, values: &[T]) -> Result<Self, DeviceError> {
        let buffer = Self::new(stream.cuda(), values.len())?;
        buffer.upload(stream, values)?;
        stream.wait()?;
        Ok(buffer)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The address on the device, for kernels and libraries.
    pub fn address(&self) -> u64 {
        self.pointer
    }

    /// The address of an element.
    pub fn at(&self, index: usize) -> u64 {
        debug_assert!(index <= self.len);
        self.pointer + (index * size_of::<T>()) as u64
    }

    /// Queues a copy from the host. It returns before the copy is done only where `values` is pinned memory, which the
    /// caller leaves alone until the stream has passed it.
    pub fn upload(&self, stream: &Stream, values: &[T]) -> Result<(), DeviceError> {
        self.fits(values.len())?;
        stream.cuda().bind()?;
        let bytes = size_of_val(values);
        stream.cuda().counters().bytes_up.fetch_add(bytes as u64, Relaxed);
        // SAFETY: `values` covers these bytes and so does the buffer.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(self.pointer, values.as_ptr().cast(), bytes, stream.raw())
        })
    }

    /// Queues a copy to the host; `values` is complete once the stream was waited for.
    pub fn download(&self, stream: &Stream, values: &mut [T]) -> Result<(), DeviceError> {
        self.fits(values.len())?;
        stream.cuda().bind()?;
        let bytes = size_of_val(values);
        stream.cuda().counters().bytes_down.fetch_add(bytes as u64, Relaxed);
        // SAFETY: `values` covers these bytes and so does the buffer.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(values.as_mut_ptr().cast(), self.pointer, bytes, stream.raw())
        })
    }

    /// Queues a copy of the first `len` elements to pinned memory at `address`, which stays alive until the stream was
    /// waited for.
    pub fn download_to(&self, stream: &Stream, address: u64, len: usize) -> Result<(), DeviceError> {
        self.fits(len)?;
        stream.cuda().bind()?;
        let bytes = len * size_of::<T>();
        stream.cuda().counters().bytes_down.fetch_add(bytes as u64, Relaxed);
        // SAFETY: the buffer covers these bytes; the caller vouches for the pinned ones.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(address as *mut std::ffi::c_void, self.pointer, bytes, stream.raw())
        })
    }

    /// The first `len` elements, downloaded and waited for.
    pub fn to_vec(&self, stream: &Stream, len: usize) -> Result<Vec<T>, DeviceError> {
        let mut values = vec![T::zeroed(); len];
        self.download(stream, &mut values)?;
        stream.wait()?;
        Ok(values)
    }

    /// Queues a copy of all of `from` to the start of this buffer.
    pub fn copy_from(&self, stream: &Stream, from: &Buffer<T>) -> Result<(), DeviceError> {
        self.fits(from.len)?;
        stream.cuda().bind()?;
        // SAFETY: both buffers cover these bytes.
        check("cuMemcpyDtoDAsync", unsafe {
            sys::cuMemcpyDtoDAsync_v2(self.pointer, from.pointer, from.bytes(), stream.raw())
        })
    }

    /// Queues setting every byte.
    pub fn fill_bytes(&self, stream: &Stream, byte: u8) -> Result<(), DeviceError> {
        stream.cuda().bind()?;
        // SAFETY: the buffer covers these bytes.
        check("cuMemsetD8Async", unsafe {
            sys::cuMemsetD8Async(self.pointer, byte, self.bytes(), stream.raw())
        })
    }

    fn fits(&self, len: usize) -> Result<(), DeviceError> {
        if len <= self.len {
            Ok(())
        } else {
            Err(DeviceError::Length { what: "a copy to or from the device", got: len, expected: self.len })
        }
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if self.cuda.bind().is_ok() {
            // SAFETY: allocated in `new`, freed once. A failure here has nobody left to tell.
            unsafe { sys::cuMemFree_v2(self.pointer) };
        }
    }
}

/// Host memory that the device reaches without a copy through the driver. Starts as zeros.
pub struct Pinned<T> {
    pointer: *mut T,
    len: usize,
    cuda: Cuda,
}

// SAFETY: plain memory, owned.
unsafe impl<T: Pod + Send> Send for Pinned<T> {}
// SAFETY: shared references only read.
unsafe impl<T: Pod + Sync> Sync for Pinned<T> {}

impl<T: Pod> Pinned<T> {
    pub fn new(cuda: &Cuda, len: usize) -> Result<Self, DeviceError> {
        cuda.bind()?;
        let bytes = (len * size_of::<T>()).max(1);
        let mut pointer = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: a pointer to a live local; the memory is then zeroed, so that it holds valid `T`.
        unsafe {
            check("cuMemHostAlloc", sys::cuMemHostAlloc(&mut pointer, bytes, flags))?;
            pointer.cast::<u8>().write_bytes(0, bytes);
        }
        Ok(Self { pointer: pointer.cast(), len, cuda: cuda.clone() })
    }

    /// The address under which kernels reach it: with unified addressing, the host's own.
    pub fn address(&self) -> u64 {
        self.pointer as u64
    }
}

impl<T> Deref for Pinned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised elements, owned.
        unsafe { std::slice::from_raw_parts(self.pointer, self.len) }
    }
}

impl<T> DerefMut for Pinned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` initialised elements, owned.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.len) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        if self.cuda.bind().is_ok() {
            // SAFETY: allocated in `new`, freed once.
            unsafe { sys::cuMemFreeHost(self.pointer.cast()) };
        }
    }
}

/// A slice of the caller's that is pinned while this lives, so that copies from it run at full speed.
pub struct Registered<'a> {
    pointer: *mut std::ffi::c_void,
    cuda: Cuda,
    slice: PhantomData<&'a [u8]>,
}

impl<'a> Registered<'a> {
    pub fn new<T: Pod>(cuda: &Cuda, values: &'a [T]) -> Result<Self, DeviceError> {
        cuda.bind()?;
        let pointer = values.as_ptr().cast_mut().cast();
        // SAFETY: the slice outlives the registration; copies from it only read.
        check("cuMemHostRegister", unsafe { sys::cuMemHostRegister_v2(pointer, size_of_val(values), 0) })?;
        Ok(Self { pointer, cuda: cuda.clone(), slice: PhantomData })
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        if self.cuda.bind().is_ok() {
            // SAFETY: registered in `new`, given back once.
            unsafe { sys::cuMemHostUnregister(self.pointer) };
        }
    }
}
