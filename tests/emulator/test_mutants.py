"""The mutant tool changes what it says, one place at a time, and counts what the device notices."""

from collections import Counter

from jax_clc.emulator.mutants import KINDS, Mutant, Verdict, explain, mutants, table

PTX = """
	mbarrier.init.shared.b64 	[%r1], %r101;
	fence.mbarrier_init.release.cluster;
	barrier.cluster.arrive.relaxed;
	barrier.cluster.wait;
	@%p1 mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p2, [%r2+8], %r3, 10000000;
	mbarrier.arrive.expect_tx.shared.b64 %rd38, [%r25+8], %r414;
	@%p4 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];
	fence.proxy.async.shared::cta;
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 	0;
	bar.sync 	%r27, 128;
	bar.warp.sync 	-1;
	add.s32 	%r1, %r1, 1;
"""


def test_each_place_of_each_kind_is_changed_once():
    found = list(mutants(PTX))
    assert Counter(m.kind for m in found) == {
        "wait": 2, "arrive": 2, "fence": 1, "commit": 1, "barrier": 2, "expect": 1, "parity": 1, "scope": 2,
    }  # fmt: skip
    assert {m.kind for m in found} == set(KINDS)
    for mutant in found:
        before, after = PTX.splitlines(), mutant.apply(PTX).splitlines()
        assert len(before) == len(after)
        changed = {i + 1 for i, (x, y) in enumerate(zip(before, after, strict=True)) if x != y}
        assert changed == {line for line, _ in mutant.changes}


def test_changes_keep_guards_and_other_operands():
    by_kind = {(m.kind, m.line): m.changes[0][1] for m in mutants(PTX)}
    assert by_kind["wait", 6] == "\t@%p1 setp.eq.b32 %p2, 0, 0;"
    assert "xor.b32 flipped, %r3, 1;" in by_kind["parity", 6]
    assert "@%p1 mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p2, [%r2+8], flipped" in by_kind["parity", 6]
    assert "shr.u32 halved, %r414, 1;" in by_kind["expect", 7]
    assert by_kind["scope", 8].strip() == "@%p4 mbarrier.arrive.release.cta.shared::cluster.b64 _, [%r6];"


def test_survivors_are_listed_with_their_reason():
    mutant = Mutant("fence", 9, "fence.proxy.async.shared::cta;", ((9, ""),))
    verdicts = [Verdict(mutant, "survived", 30), Verdict(Mutant("wait", 1, "x", ()), "Deadlock", 0)]
    reasons = [{"kernel": "static", "kind": "fence", "text": "proxy", "context": "commit", "reason": "because"}]
    assert "**not explained**" in table("k_static", verdicts, 30)
    report = table("k_static", explain("k_static", PTX, verdicts, reasons), 30)
    assert "PTX line 9: `fence.proxy.async.shared::cta;`: because" in report
    assert "| wait | 1 | 0 | 1 | 0 | 0 | 0 | 100% |" in report
    assert "| fence | 1 | 0 | 0 | 0 | 1 | 0 | - |" in report
    assert explain("k_dynamic", PTX, verdicts, reasons)[0].reason == ""
    assert explain("k_dynamic", PTX, verdicts, reasons, {9: "seen"})[0].reason == "seen"
