"""Commands with a mistake: each is one line and exit code 2, and starts nothing."""

import pytest
import torch

from parcade.atari.compiling.prepare import prepare
from parcade.cli import main

prepare()  # its line about compiling, the first time, would be a second one

BAD = {
    "an unknown command": ("trian", "unknown command 'trian'; did you mean 'train'?"),
    "an id of a module that is not named": (
        "train Foo-v0",
        "did you mean 'Acrobot-v1'? Name an environment of your own with its module: MODULE:Foo-v0",
    ),
    "an unknown game": ("train pongg", "unknown game 'pongg'; did you mean 'pong'?"),
    "an unknown algorithm": ("train pong --algorithm pp0", "unknown algorithm 'pp0'; did you mean 'ppo'?"),
    "an unknown flag": (
        "train pong --learning-rat 1",
        "unknown flag --learning-rat; did you mean --learning-rate?",
    ),
    "a flag of another algorithm": ("train pong --algorithm a2c --clip 1", "unknown flag --clip"),
    "a word for a number": ("train pong --num-envs many", "--num-envs: expected an integer"),
    "an unknown engine": ("train pong --engine mip", "invalid choice 'mip' for argument '--engine'"),
    "an unknown preset": ("train pong --preset pong_fats", "did you mean 'pong_fast'?"),
    "an unknown environment preset": ("train pong --env-preset dqn", "unknown environment preset 'dqn'"),
    "an unknown network": (
        "train pong --network resnet",
        "unknown network 'resnet'; did you mean 'impala_resnet'?",
    ),
    "no game": ("train", "train"),
    "no environments": ("train pong --num-envs 0", "num_envs=0 is below 1"),
    "a discount above one": ("train pong --gamma 1.5", "gamma=1.5 is not in [0, 1]"),
    "a time that is none": ("train pong --time-limit soon", "time 'soon' is not a duration"),
    "ranks without mpi": ("train pong --ranks 2", "ranks=2 needs --engine mpi"),
    "ranks on Ray": (
        "train pong --algorithm impala --engine ray --ranks 2",
        "engine ray has actors and learners instead; use --num-actors and --num-learners",
    ),
    "a hang time that is too short": ("train pong --hang-timeout 1s", "hang_timeout=1s is below 2 s"),
    "what does not divide": (
        "train pong --overlap --num-envs 5",
        "num_envs=5 is not divisible by world_size=1 x 2 group(s); use 4 or 6",
    ),
    "games that do not divide": (
        "train tiny_catch --algorithm reinforce --games-per-update 15",
        "games_per_update=15 is not divisible by num_envs=10; use 10 or 20",
    ),
    "more minibatches than steps": (
        "train tiny_catch --num-envs 1 --unroll-length 2 --num-minibatches 4",
        "num_minibatches=4 is more than the 2 steps",
    ),
    "an LSTM for whole games": ("train pong --algorithm reinforce --lstm 8", "neither --lstm"),
    "a mode over ale": ("train pong --backend ale --mode 1", "ale-py's vector env can set neither"),
    "a mode the game has not": ("train pong --mode 77", "mode=77 is not supported by this game"),
    "a backend that is not there": ("train pong --backend envpool", "unknown backend 'envpool'"),
    "the RAM of ale-py's consoles": ("train pong --backend ale --observations ram", "use backend 'native'"),
    "RAM for a network of pictures": (
        "train pong --observations ram --network nature_cnn",
        "use --network auto",
    ),
    "a setting by ale-py's name": (
        "train pong --stack_num 4",
        "unknown flag --stack-num; here it is --frame-stack",
    ),
    "a flag of another library": ("train pong --lr 1e-3", "unknown flag --lr; here it is --learning-rate"),
    "another library's count of steps": (
        "train pong --total-timesteps 1e6",
        "here it is --total-frames; a step of an Atari game is 4 frames (--frame-skip)",
    ),
    "a batch size of PPO": ("train pong --batch_size 64", "here it is --num-minibatches; their number, not"),
    "a flag of another library and algorithm": (
        "train pong --buffer-size 1000",
        "here it is --replay-capacity, a flag of --algorithm dqn, gorila, apex",
    ),
    "a sweep's flag of another library": (
        "sweep pong --space epochs=1,2 --n-envs 8",
        "unknown flag --n-envs; here it is --num-envs",
    ),
    "a setting by its old name": ("train pong --view rgb", "unknown flag --view; it is --observations now"),
    "a picture too small": ("train pong --network nature_cnn --image-height 20", "too small"),
    "consoles on a GPU without the network": (
        "train pong --env-device cuda",
        "needs the network on a GPU; got device 'cpu'",
    ),
    "consoles of a system of parts on a GPU": (
        "train pong --device cuda --env-device cuda --algorithm impala",
        "emulates on the CPU; use --env-device cpu",
    ),
    "consoles of whole games on a GPU": (
        "train pong --device cuda --env-device cuda --algorithm reinforce",
        "emulates on the CPU; use --env-device cpu",
    ),
    "ale-py's consoles on a GPU": (
        "train pong --device cuda --env-device cuda --backend ale",
        "use --backend native, or --env-device cpu",
    ),
    "another environment on a GPU": (
        "train tiny_catch --device cuda --env-device cuda",
        "needs an Atari game",
    ),
    "consoles on a GPU that overlap": (
        "train pong --device cuda --env-device cuda --overlap",
        "env_device 'cuda' does not support --overlap",
    ),
    "a score that is no number": (
        "train pong --target-score eighteen",
        "--target-score: expected a number, e.g. 0.5; got 'eighteen'",
    ),
    "frames that are no whole number": (
        "train pong --total-frames 1.5",
        "expected an integer, e.g. 100, 4e6 or 4M; got '1.5'",
    ),
    "a picture of one row": ("train pong --image-height 1", "image_height=1 is below 8"),
    "an interface for MPI with Ray": (
        "train pong --algorithm impala --engine ray --network-interface eth0",
        "got engine ray; use --address and --interface",
    ),
    "a remote shell for one process": (
        "train pong --remote-shell rsh",
        "remote_shell=rsh is for --engine mpi; got engine local",
    ),
    "a flag that is missing": ("scale-to runs", "missing: --actors, new number of actors;"),
    "an argument that is missing": ("eval", "missing: the run's directory, or zoo:NAME for an agent"),
    "far too many environments": ("train pong --num-envs 1e9", "or fewer"),
    "an unknown place for consoles": ("train pong --env-device gpu", "invalid choice 'gpu'"),
    "GPUs for actors": (
        "train pong --device cuda --algorithm impala --engine ray --actor-gpus 1",
        "actors use CPU cores",
    ),
    "a part of a second GPU": (
        "train pong --device cuda --algorithm impala --engine ray --learner-gpus 1.5",
        "learner_gpus=1.5: Ray reserves a share of one GPU or whole GPUs; use 1 or 2",
    ),
    "more environments than threads serve": (
        "train tiny_catch --num-envs 400000 --unroll-length 2 --threads-per-rank 1",
        "400,000 environments on 1 thread(s) may take 400 s per step, more than the 120 s",
    ),
    "groups that do not divide": (
        "train pong --algorithm vtrace --num-groups 3",
        "num_envs=40 is not divisible",
    ),
    "a run that is not there": ("eval nowhere", "nowhere/config.json does not exist"),
    "a resume of nothing": ("train --resume nowhere", "nowhere/config.json does not exist"),
    "an unknown bench": ("bench envs", "unknown bench 'envs'; did you mean 'env'?"),
    "a bench without time": ("bench env --seconds 0", "seconds=0.0"),
    "a bench for a time that is no number": ("bench env --seconds nan", "seconds=nan"),
    "a bench on a device that is not there": ("bench train pong --device tpu", "invalid choice 'tpu'"),
    "a bench with too many threads": (
        "bench env --num-threads 30000",
        "num_threads=30,000 is more than 16 threads",
    ),
    "a plot that is no PNG": ("bench env tiny_catch --plot out.txt", "plot=out.txt does not end in .png"),
    "a result that is a directory": ("bench env tiny_catch --json .", "json=. is a directory"),
    "a stage that cannot be, after one that can": (
        "bench env tiny_catch --stages observe train --algorithm pp0 --seconds 600",
        "unknown algorithm 'pp0'",
    ),
    "a rollout that no memory holds": (
        "train tiny_catch --unroll-length 1000000000000",
        "unroll_length=1,000,000,000,000 needs 953674.3 GiB",
    ),
    "a batch that no memory holds": (
        "train tiny_catch --algorithm dqn --batch-size 1000000000000",
        "batch_size=1,000,000",
    ),
    "an LSTM of a size that means nothing": (
        "train tiny_catch --lstm 1000000000",
        "lstm=1,000,000,000 is above 1,000,000",
    ),
    "an LSTM that no memory holds": (
        "train tiny_catch --lstm 1000000",
        "the network's 4,001,024,065,536 parameters need",
    ),
    "a network that no memory holds": (
        "train tiny_catch --hidden 1000000",
        "hidden=1,000,000, lstm=0: the network's",
    ),
    "threads that no core is for": (
        "train tiny_catch --threads-per-rank 30000",
        "threads_per_rank=30,000 is more than 16 threads",
    ),
    "ranks that no memory holds": (
        "train tiny_catch --engine mpi --ranks 100000000 --num-envs 100000000",
        "ranks=100,000,000: that many ranks need 9,765,625.0 GiB or more, but only",
    ),
    "no time to train": ("train tiny_catch --time-limit 0", "time_limit=0 leaves no time"),
    "a doctor who watches for ever": ("doctor --seconds inf", "seconds=inf"),
    "a doctor for a time that is no number": ("doctor --seconds nan", "seconds=nan"),
    "a doctor asked about too many threads": (
        "doctor --threads-per-rank 30000",
        "threads_per_rank=30,000 is more than 16",
    ),
    "a second game": ("train pong breakout", "unexpected argument 'breakout'"),
    "a flag that other algorithms have": (
        "train pong --num-actors 4",
        "unknown flag --num-actors; it is a flag of --algorithm a3c, async-q, gorila, apex, impala, ga3c, es",
    ),
    "a switch that other algorithms have": (
        "train pong --no-double",
        "it is a flag of --algorithm dqn, gorila, apex",
    ),
    "a word for a fraction": ("train pong --gamma most", "expected a number, e.g. 0.5; got 'most'"),
    "a preset unlike any": (
        "train pong --preset zzzz",
        "pong_a3c, pong_async_q, pong_ga3c, pong_es, rainbow, karpathy_2016",
    ),
    "a ROM unlike any": (
        "disassemble CartPole-v1",
        "unknown game 'CartPole-v1'; expected a game listed by parcade games, or the path",
    ),
    "a watch without a terminal": ("watch zoo:pong", "use: parcade eval zoo:pong --video out.mp4"),
    "a watch of no agent": ("watch zoo:nope", "unknown zoo agent 'nope'"),
    "a watch of no run": ("watch norun", "norun does not exist; expected a run's directory or a recording"),
    "a greedy race alone": ("race pong --greedy", "--against zoo:pong"),
    "a population without end": (
        "train tiny_catch --algorithm es --population 1e12",
        "population=1,000,000,000,000 needs 22351.7 GiB, but only",
    ),
    "no ranks": ("train tiny_catch --ranks 0", "ranks=0 is below 1"),
    "hosts of no file": (
        "train tiny_catch --engine mpi --ranks 2 --hosts nofile",
        "host file nofile cannot be read",
    ),
    "a negative time": ("train pong --time-limit -5s", "time '-5s' is not a duration"),
    "a seed beyond every integer": ("train pong --seed 1e30", "is above 9,223,372,036"),
    "more frames than a counter holds": (
        "train tiny_catch --total-frames " + "9" * 60,
        "is beyond 2**63 - 1; use a smaller number",
    ),
    "frames without an end": ("train pong --total-frames inf", "expected an integer"),
    "a learning rate that is no number": ("train pong --learning-rate nan", "is not finite"),
    "a number too large for the network": ("train pong --clip 1e300", "is beyond 1e+30"),
    "an atom too large for the network": (
        "train pong --algorithm dqn --value-head c51 --v-max 1e39",
        "v_max=1e+39 is beyond 1e+30",
    ),
    "an epsilon above 1": (
        "train pong --algorithm apex --epsilon-base 1.5",
        "epsilon_base=1.5 is not in (0, 1]",
    ),
    "a preset in capitals": ("train pong --preset Pong_fast", "did you mean 'pong_fast'?"),
    "Q values of a policy": ("train pong --dueling", "ppo has no Q values for --dueling"),
    "a memory refreshed on other environments": (
        "train pong --algorithm pqn --lstm 8 --burn-in --overlap",
        "--burn-in follows one group of environments",
    ),
    "a preset of another algorithm": (
        "train pong --preset pong_dqn --algorithm ppo",
        "preset pong_dqn is for dqn; got --algorithm ppo; leave one of them out",
    ),
    "a game for two players only": ("train combat", "unknown game 'combat'"),
    "a switch with a value": ("train pong --overlap yes", "unexpected argument 'yes'"),
    "starts of no file": ("train pong --start-states no.json", "there is no file no.json"),
    "a suite of recorded starts": ("suite pong --protocol recorded-starts", "needs a recording of each game"),
    "an image too large": ("train pong --image-height 1e9", "=1,000,000,000 is above 4,096"),
    "a frame limit beyond counting": ("train pong --frame-limit 1e12", "is above 2,147,483,647"),
    "a frame skip without frames": ("train CartPole-v1 --frame-skip 2", "has no frame_skip"),
    "random steps of continuous actions": (
        "train tiny_aim --warm-up-steps 5",
        "needs an Atari game, and tiny_aim is none",
    ),
    "observations of tuples": ("train Blackjack-v1", "expected Box observations"),
    "an id of another version": ("train Pong-v5", "unknown id Pong-v5; use PongNoFrameskip-v4"),
    "a word for frames": (
        "train pong --total-frames abc",
        "parcade: --total-frames: expected an integer, e.g. 100, 4e6 or 4M; got 'abc'",
    ),
    "trackers and none": ("train pong --track none wandb", "none excludes the others"),
    "a suite of no game": ("suite foo", "'foo' is neither a set (atari-5, "),
    "a report on other games": (
        "suite atari-5 --report-only --dir x",
        "--report-only takes the games from --dir; leave out 'atari-5'",
    ),
    "a job without dashes": (
        "slurm --nodes 2 train pong",
        "put -- before the command: parcade slurm --nodes 2 -- train pong",
    ),
    "a partition called train": ("slurm --partition train", "expected the job after --"),
    "a duel of two games": (
        "duel zoo:pong zoo:breakout",
        "the agents were trained on different games: breakout, pong; use one game",
    ),
    "a duel of another game": (
        "duel zoo:pong random --game tennis",
        "the agents were trained on pong; got --game tennis; leave --game out",
    ),
    "stacks of nothing": ("stacks nowhere", "has no records of running processes"),
    "a resume of an agent": ("train --resume zoo:pong", "to train on from it, use --from zoo:pong"),
    "a bench of one pixel": ("bench env pong --image-size 1", "image_height=1 is below 8"),
}
if not torch.cuda.is_available():
    BAD["a GPU that is not there"] = (
        "train pong --device cuda",
        "finds no NVIDIA GPU here; use --device cpu",
    )


@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake_is_one_line_and_exit_code_2(mistake, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "parcade.train.train", lambda *_, **__: pytest.fail("training started: the mistake was not detected")
    )
    command, says = BAD[mistake]
    assert main(command.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith("parcade: ") and says in err, err
    assert err.count("\n") == 1 and "Traceback" not in err
    assert not any(tmp_path.iterdir())
