use super::optimiser::{Kind, Parameter, Rates, root_mean_square};
use super::packed::Packed;
use super::room::Room;
use crate::blr::payload::Shape;
use crate::compress::round::{RoundError, round_to_payload};
use crate::device::arena::{Arena, View};
use crate::device::{Bytes, DeviceError};
use crate::model::{Block, Linear, LinearName, RowOrder, Tensor};
use crate::ops::Dtype;
use crate::ops::adam::Adam;

/// What a linear layer is made of, which decides the room that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Dense,
    Packed(Shape),
}

impl Form {
    /// The forms of a block's layers, in the order of [`LinearName::ALL`].
    pub fn of(block: &Block) -> [Self; 7] {
        LinearName::ALL.map(|name| match block.linear(name) {
            Linear::Dense(_) => Self::Dense,
            Linear::Packed { payload, .. } => Self::Packed(payload.shape()),
        })
    }
}

/// One linear layer of a block that is tuned: dense or packed, frozen or trained.
#[derive(Clone, Debug)]
pub(super) struct TunedLinear {
    pub name: LinearName,
    /// W or Ŵ, out x in.
    pub weight: View,
    /// ∂L/∂W, where it is needed.
    pub slope: Option<View>,
    pub bias: Option<usize>,
    parts: Parts,
}

#[derive(Clone, Debug)]
enum Parts {
    /// With the parameter, where it is trained.
    Dense(Option<Parameter>),
    Packed(Packed),
}

/// Why a tuned layer was not stored.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    #[error("{0}: {1}")]
    Round(String, RoundError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl TunedLinear {
    pub fn place(
        room: &mut Room,
        name: LinearName,
        [rows, cols]: [usize; 2],
        (form, bias): (Form, bool),
        rates: &Rates,
    ) -> Self {
        let bias = bias.then(|| room.kept.vector(rows));
        match form {
            Form::Dense => {
                let weight = room.kept.matrix(rows, cols);
                let slope = rates.dense.map(|_| room.scratch.matrix(rows, cols));
                let one = |slope: View| {
                    Parameter::place(&mut room.kept, rates, Kind::Dense, [weight.at, slope.at, weight.len()])
                };
                let parameter = slope.and_then(one);
                Self { name, weight, slope, bias, parts: Parts::Dense(parameter) }
            }
            Form::Packed(shape) => {
                let packed = Packed::place(room, shape, cols, rates);
                let weight = room.scratch.matrix(rows, cols);
                let slope = packed.is_trained().then(|| room.scratch.matrix(rows, cols));
                Self { name, weight, slope, bias, parts: Parts::Packed(packed) }
            }
        }
    }

    /// Writes the layer, and returns what is to be trained of it. A packed one is multiplied out by
    /// [`compose`](super::packed::compose).
    pub fn write(&self, arena: &mut Arena, block: &Block, rates: &Rates) -> Vec<Adam> {
        if let (Some(at), Some(bias)) = (self.bias, block.bias(self.name)) {
            arena.write(at, bias);
        }
        match (&self.parts, block.linear(self.name)) {
            (Parts::Packed(packed), Linear::Packed { payload, .. }) => packed.write(arena, payload, rates),
            (Parts::Dense(parameter), Linear::Dense(tensor)) => {
                let numbers = tensor.to_f32();
                arena.write(self.weight.at, &numbers);
                parameter.iter().map(|p| p.item(rates, root_mean_square(&numbers))).collect()
            }
            _ => unreachable!("{:?} was placed for the block that is written", self.name),
        }
    }

    /// Lengths of the vectors that are trained, in the order of what [`write`](Self::write) returns.
    pub fn trained(&self) -> Vec<usize> {
        match &self.parts {
            Parts::Dense(parameter) => parameter.iter().map(|p| p.len).collect(),
            Parts::Packed(packed) => packed.trained().collect(),
        }
    }

    /// The packed form and where it is multiplied out to.
    pub fn packed(&self) -> Option<(&Packed, View)> {
        match &self.parts {
            Parts::Packed(packed) => Some((packed, self.weight)),
            Parts::Dense(_) => None,
        }
    }

    /// The layer as it is now, rounded as it is stored; nothing where it is not trained.
    pub fn read(&self, arena: &mut Arena, layer: usize) -> Result<Option<Linear>, StoreError> {
        match &self.parts {
            _ if self.slope.is_none() => Ok(None),
            Parts::Packed(packed) => {
                let paths = packed.read(arena)?;
                let payload = round_to_payload(&paths)
                    .map_err(|error| StoreError::Round(self.name.prefix(layer), error))?;
                Ok(Some(Linear::Packed { payload, in_features: self.weight.cols }))
            }
            Parts::Dense(_) => {
                let numbers = arena.read(self.weight.at, self.weight.len())?;
                let bytes: Vec<u8> = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
                Ok(Some(Linear::Dense(Tensor {
                    name: format!("{}.weight", self.name.prefix(layer)),
                    dtype: Dtype::F32,
                    shape: vec![self.weight.rows, self.weight.cols],
                    bytes: Bytes::from(bytes),
                    row_order: RowOrder::Plain,
                })))
            }
        }
    }
}
