//! What arenas promise on every device.

use lapidary::device::arena::View;
use lapidary::ops::scale::{Scale, scale};

use super::on_every_device;

#[test]
fn repeated_launches_run_as_often_as_asked() {
    on_every_device(|sheet| {
        let a = sheet.random(9, 40);
        let out = sheet.matrix(9, 40, |_, _| 0.0).view;
        for times in [0, 1, 300] {
            sheet.arena.repeat(times, |arena| {
                scale(arena, &[Scale::new(a.view, out).add()]);
                arena.repeat(2, |arena| scale(arena, &[Scale::new(a.view, out).add()]));
            });
        }
        super::assert_close(&sheet.read(out), out, 0.05, |i, j| 903.0 * a.at(i, j));
    });
}

#[test]
fn writes_wait_for_what_was_queued_before() {
    on_every_device(|sheet| {
        let a = sheet.random(3, 7);
        let out = sheet.blank(3, 7);
        scale(&mut sheet.arena, &[Scale::new(a.view, out)]);
        sheet.fill(a.view, |_, _| 5.0);
        super::assert_close(&sheet.read(out), out, 0.0, |i, j| a.at(i, j));
        scale(&mut sheet.arena, &[Scale::new(a.view, out)]);
        super::assert_close(&sheet.read(out), out, 0.0, |_, _| 5.0);
    });
}

/// More tables than one upload of any device holds.
#[test]
fn many_items_and_many_launches() {
    on_every_device(|sheet| {
        let numbers = sheet.random(1, 40_000);
        let out = sheet.matrix(1, 40_000, |_, _| 0.0).view;
        let one = |view: View, j: usize| view.part((0, j), (1, 1));
        let items: Vec<_> =
            (0..40_000).map(|j| Scale::new(one(numbers.view, j), one(out, j)).add()).collect();
        for _ in 0..5 {
            scale(&mut sheet.arena, &items);
        }
        super::assert_close(&sheet.read(out), out, 1e-5, |_, j| 5.0 * numbers.at(0, j));
    });
}

#[cfg(feature = "wgpu")]
mod wgpu {
    use lapidary::device::arena::{Arena, Program, Table, float_word};
    use lapidary::device::wgpu::{Adapters, Wgpu};
    use lapidary::device::{Device, DeviceError};
    use lapidary::ops::splitmix::SplitMix64;

    use crate::common;

    #[test]
    fn an_arena_beyond_a_binding_is_refused_with_its_figure() {
        let Some(wgpu) = common::wgpu() else { return };
        let device = Device::Wgpu(wgpu);
        let largest = Arena::largest(&device).unwrap();
        let error = Arena::new(&device, largest + 1).err().unwrap();
        assert!(
            matches!(error, DeviceError::Memory { needed_mib, free_mib, .. } if needed_mib > free_mib),
            "{error}"
        );
    }

    #[test]
    fn a_software_adapter_is_no_card() {
        if let Ok(card) = Wgpu::open(Adapters::Hardware) {
            assert!(!card.is_software(), "{card:?}");
        }
    }

    /// Enough columns and flips to use up the turns that Mesa's software adapter gives the loops of a thread: all scales
    /// are marked then, and none is on a card.
    #[test]
    fn loops_that_were_cut_short_are_marked() {
        let Some(wgpu) = common::wgpu() else { return };
        let (n, r) = (128, 512);
        let mut arena = Arena::new(&Device::Wgpu(wgpu), 1 << 20).unwrap();
        let mut random = SplitMix64::new(3);
        let mut noise = |len: usize| -> Vec<f32> { (0..len).map(|_| random.signed() as f32).collect() };
        let [s, ks, b, k, rt, e, g, flips] = [0, 1, 2, 3, 7, 8, 9, 10].map(|i| i * n * r);
        arena.write(b, &noise(n * r));
        arena.write(s, &noise(n * r).iter().map(|value| value.signum()).collect::<Vec<_>>());
        // K = I: K s = s.
        arena.write(k, &vec![0.0; r * r]);
        (0..r).for_each(|i| arena.write(k + i * (r + 1), &[1.0]));
        arena.write(rt, &vec![0.0; n * n]);
        (0..n).for_each(|i| arena.write(rt + i * (n + 1), &[1.0]));
        let signs = arena.read(s, n * r).unwrap();
        arena.write(ks, &signs);
        let mut table = Table::new(20);
        let [tolerance, settled] = [1e-7, 1e-6].map(float_word);
        table.push(1, &[s, r, ks, r, b, r, k, r, rt, n, e, r, n, r, 0, n, g, flips, tolerance, settled]);
        let programs = lapidary::ops::programs();
        let program = programs.into_iter().find(|program| program.entry == "column_search").unwrap();
        arena.queue(program, table);
        let (g, flips) = (arena.read(g, n).unwrap(), arena.read(flips, n).unwrap());
        let marked = g.iter().filter(|g| g.is_nan()).count();
        let cut = marked == n && arena.turns() < usize::MAX;
        let whole = marked == 0 && flips.iter().all(|flips| *flips > 0.0);
        assert!(cut || whole, "{marked} of {n} are marked, flips are {flips:?}");
    }

    static BROKEN: Program = Program {
        name: "broken",
        entry: "broken",
        threads: 1,
        shared: 0,
        constants: &[],
        cuda: "",
        wgsl: "@compute @workgroup_size(THREADS) fn broken() { nothing(); }",
    };

    #[test]
    fn a_broken_kernel_is_an_error_of_the_next_read() {
        let Some(wgpu) = common::wgpu() else { return };
        let mut arena = Arena::new(&Device::Wgpu(wgpu), 8).unwrap();
        let mut table = Table::new(1);
        table.push(1, &[0]);
        arena.queue(&BROKEN, table);
        arena.write(0, &[1.0]);
        for _ in 0..2 {
            let error = arena.read(0, 1).unwrap_err();
            assert!(matches!(&error, DeviceError::Shader { log, .. } if log.contains("nothing")), "{error}");
        }
        assert!(arena.finish().is_err());
    }
}
