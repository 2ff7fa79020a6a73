"""Code that a translation lacks is noted by the interpreter, and translated while consoles play."""

import threading
import time
import zlib

import numpy as np
import pytest

from parcade import Arcade
from parcade.atari import cartridge
from parcade.atari.queued import QueuedConsoles
from parcade.atari.state import CART_KIND
from parcade.atari.translate import known_code, notes, rom_code
from parcade.atari.vector import VectorConsoles

FRAMES = 120


@pytest.fixture
def random(seed):
    return np.random.default_rng(seed)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty directory of compiled code of ROMs."""
    for module in (known_code, rom_code):
        monkeypatch.setattr(module, "cache_directory", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def knows_little(cache, monkeypatch):
    """Start Pong from notes of its first instruction alone, and renew its code soon."""
    monkeypatch.setattr(rom_code, "RENEW_AFTER", 2000)

    def first_instruction(powered, rom, program):
        known = np.zeros(cartridge.image_size(rom), np.uint8)
        vector = int(rom[0xFFC]) | int(rom[0xFFD]) << 8
        known[vector & 0xFFF] = (vector >> 13) << notes.MIRROR_SHIFT | notes.SEEN | notes.ENTERED
        return known

    monkeypatch.setattr("parcade.atari.translate.tracing.trace", first_instruction)


def noted_per_frame(arcade: Arcade, frames: int = 4) -> float:
    number = notes.number_noted(arcade.machine.rom)
    before = int(number[0])
    for _ in range(frames):
        arcade.act(0)
    return (int(number[0]) - before) / frames


def address_of(consoles) -> bytes:
    return consoles.machine.rom[-8:].tobytes()


def attach_if_renewed(consoles) -> None:
    """Wait for a translation that has started."""
    if consoles._code._thread is not None:
        consoles._code._thread.join()
        consoles._code.check()


@pytest.mark.parametrize("damage", [lambda whole: b"", lambda whole: whole[:-8] + bytes(8)])
def test_a_damaged_file_of_machine_code_is_made_again(tmp_path, monkeypatch, damage):
    """LLVM does not check what it loads: it would crash."""
    monkeypatch.setattr(rom_code, "cache_directory", lambda: tmp_path)
    made = []

    def make():
        made.append(1)
        return b"machine code of a ROM"

    def found():
        return rom_code._kept("a.o", make), len(made)

    assert found() == found() == (b"machine code of a ROM", 1)
    (path,) = tmp_path.glob("rom-*.o")
    path.write_bytes(damage(path.read_bytes()))
    made.clear()
    assert found() == found() == (b"machine code of a ROM", 1)


def test_missing_code_is_translated_while_consoles_play_on_the_same(knows_little, cache, random, monkeypatch):
    renewed, interpreted = Arcade("pong", 1), Arcade("pong", 1)
    rom_code.detach(interpreted.machine.rom)
    poor = address_of(renewed)
    for arcade in (renewed, interpreted):
        arcade.reset(seed=4)
    with monkeypatch.context() as patch:
        # A translation that ends now would set the number of notes back.
        patch.setattr(renewed._code, "check", lambda: None)
        assert noted_per_frame(renewed) > 100
    noted_per_frame(interpreted)
    for _ in range(FRAMES):
        action = int(random.integers(18))
        assert renewed.act(action) == interpreted.act(action)
        assert np.array_equal(renewed.ram, interpreted.ram)
        assert np.array_equal(renewed.screen, interpreted.screen)
        attach_if_renewed(renewed)
    assert address_of(renewed) != poor
    assert noted_per_frame(renewed) < 5
    again = Arcade("pong", 1)
    assert address_of(again) == address_of(renewed), "the next start has the renewed code"


def test_nothing_is_translated_again_where_nothing_is_missing(cache, monkeypatch):
    monkeypatch.setattr(rom_code, "RENEW_AFTER", 1)
    arcade = Arcade("pong", 1)
    arcade.reset(seed=1)
    for _ in range(2):  # machine code exits at the write to VSYNC, which looks like a missing entry once
        arcade.act(0)
        arcade.act(0)
        attach_if_renewed(arcade)
    before, loaded = address_of(arcade), len(rom_code._loaded)
    arcade.act(0)
    arcade.act(0)
    attach_if_renewed(arcade)
    assert address_of(arcade) == before
    assert arcade._code._due == 8
    assert len(rom_code._loaded) == loaded


@pytest.mark.parametrize("kind", ["rounds", "queue"])
def test_environments_renew_their_code_and_play_the_same(kind, knows_little, random):
    actions = random.integers(0, 6, (40, 2))
    shown = []
    plain = VectorConsoles("pong", 2)
    plain._code.check = lambda: None
    plain.reset(seed=7)
    expected = [plain.step(row) for row in actions]
    if kind == "rounds":
        consoles = VectorConsoles("pong", 2)
        consoles.reset(seed=7)
        step = consoles.step
    else:
        consoles = QueuedConsoles("pong", 2, batch_size=2)
        consoles.restart(seed=7)
        consoles.receive()

        def step(row):
            consoles.send(row, np.arange(2))
            order, result = consoles.receive()
            return type(result)(*(None if column is None else column[order.argsort()] for column in result))

    poor = address_of(consoles)
    for row in actions:
        shown.append(step(row))
        attach_if_renewed(consoles)
    for result, wanted in zip(shown, expected, strict=True):
        assert np.array_equal(result.observations, wanted.observations)
        assert np.array_equal(result.rewards, wanted.rewards)
    assert address_of(consoles) != poor
    consoles.close()


def test_processes_share_what_they_learn(cache):
    rom = Arcade("pong", 1).machine.rom
    (file,) = cache.glob("*.notes1")
    known = np.frombuffer(zlib.decompress(file.read_bytes()), np.uint8)
    seen, _ = notes.named(known, cartridge.PLAIN)
    code, _ = known_code.find_code(known_code.Image(rom, cartridge.PLAIN), seen)
    assert not known_code.lacks(rom, cartridge.PLAIN, known, known)
    new = next(at for at in range(0x800) if 0xF000 + at not in code and not known[at])
    mine = np.zeros_like(known)
    mine[new] = 7 << notes.MIRROR_SHIFT | notes.SEEN
    assert known_code.lacks(rom, cartridge.PLAIN, known, mine)
    added = known_code.shared_notes(rom, cartridge.PLAIN, mine)
    assert added[new] == mine[new]
    assert np.array_equal(np.delete(added, new), np.delete(known, new))
    assert np.array_equal(known_code.shared_notes(rom, cartridge.PLAIN, mine), added)
    assert np.array_equal(np.frombuffer(zlib.decompress(file.read_bytes()), np.uint8), added)


@pytest.mark.parametrize("damage", [b"", b"no notes", zlib.compress(b"too short")])
def test_a_damaged_file_of_notes_is_made_again(cache, damage):
    before = notes.notes_of(Arcade("pong", 1).machine.rom).copy()
    (file,) = cache.glob("*.notes1")
    file.write_bytes(damage)
    assert np.array_equal(notes.notes_of(Arcade("pong", 1).machine.rom), before)
    assert len(zlib.decompress(file.read_bytes())) == len(before)


def test_code_that_two_threads_load_at_once_is_loaded_once(cache, monkeypatch):
    """The first of two engines would be freed while consoles run its code."""
    load, loads = rom_code.machine_code.load_object, []

    def slow_load(code):
        loads.append(code)
        time.sleep(0.3)
        return load(code)

    monkeypatch.setattr(rom_code, "_loaded", {})
    monkeypatch.setattr(rom_code.machine_code, "load_object", slow_load)
    machine = Arcade("pong", 1).machine
    rom_code._loaded.clear()
    loads.clear()
    kind = int(machine.powered["state"][0, CART_KIND])
    addresses = []

    def load_again():
        addresses.append(rom_code._machine_code(machine.rom, kind, notes.notes_of(machine.rom).copy()))

    threads = [threading.Thread(target=load_again) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1 and len(addresses) == 3 and len(set(addresses)) == 1
