//! tidegate serves large Mixture-of-Experts language models to several people at once, on machines that people can afford.
//!
//! This page is the architecture: two levels, where everything lies, what never happens, and the words.
//!
//! # Two levels
//!
//! **Outside, stages.** A request is a chain of async steps, and the chain is a type: [`stage::Stage`] has `In`, `Out` and `Error`, pulls its input when its output
//! is polled, and holds no queue; [`stage::Then`] is the one way in which steps are joined, so a wrong order does not compile. [`expression`] says the chain:
//! tokenize, generate, detokenize, stop, reason. Its types are erased once, at the router in [`http`].
//!
//! **Inside, the engine thread.** One OS thread owns every sequence, KV page and recurrent state ([`engine`]). Its turn: take events, ask every sequence what it
//! wants, begin a pass or advance one by a slice (a layer, of prompts on a CPU a fourth of one), and after the last sample and emit. What computes is an [`engine::executor::Executor`]; a
//! [`model::Runner`] is the real one, and simulations bring their own.
//!
//! Between the two stand the only queues, both bounded: the engine's inbox, and one outbox a sequence. An outbox's free places are the sequence's **credits**: it asks for
//! rows only while there is room for what they produce, so a reader who stops parks his own sequence and nobody else's. Dropping the stream cancels: the
//! sequence's rows leave the pass at the next slice, and its slot and pages are free.
//!
//! **A layer** is a chain of ops with typed hand-overs, `Hidden -> Normed -> Routed -> Resident -> Branch -> Hidden` ([`op`]). Ops put work on a [`backend::Backend`] and return;
//! data lies in the backend's named buffers. Where a pass may be left inside a layer, each lane has its own. The files of [`pipelines`] say, for each model family, which ops a layer is made of; the trunk is a loop over layers.
//!
//! # Code map
//!
//! | module | what it is |
//! | --- | --- |
//! | [`gguf`], [`quant`] | the container, mapped in place; what the bytes of every block type mean |
//! | [`token`], [`template`] | text to tokens and back; conversations to text |
//! | [`stage`], [`expression`] | the outer level: one async step a file, and the chain; reasoning is told from answers in [`stage::reason`] |
//! | [`engine`], [`sampler`] | the engine thread: events, sequences, schedule, windows, pages; choosing tokens |
//! | [`model`], [`op`], [`pipelines`] | from a file to layers; the inner level; one file a family |
//! | [`backend`] | what ops ask of a machine |
//! | [`cpu`] | the CPU as one: worker pool, kernels by instruction set, attention, delta net, routing |
//! | [`cuda`] | a CUDA device as one: found at run time; `kernels/*.cu`, compiled for the device and the model's shape, and kept on disk |
//! | [`trace`], [`replay`] | which experts every row chose, recorded; placement policies run over it in simulated time |
//! | [`residency`] | which experts lie in fast memory: slots, tickets, the policies that say who comes and goes, lookahead, the division of misses; and the calls that a backend makes |
//! | [`cpu::store`] | experts in memory of their own, read from the file into slots |
//! | [`table`] | a table of n-grams on the drive: which rows windows need, and reading them ahead |
//! | [`ledger`], [`estimate`] | the memory plan, made before the first allocation; how fast it will be |
//! | [`http`], [`settings`], [`cli`] | the API, the settings, the program |
//! | [`synth`], [`inspect`] | synthetic model files; what a file holds |
//!
//! # What families added
//!
//! | family | ops and variants that came with it | ops it found there |
//! | --- | --- | --- |
//! | `qwen3moe`, `olmoe`, `llama`, `qwen2`, `qwen3` | norm, attention (norms of queries and keys, biases), feed-forward, route, place, experts, add | |
//! | `qwen3next`, `qwen35moe` | delta net, output gates, shared experts | all of the above |
//! | `glm4moe` | sigmoid gating, a bias on the choice, dense layers first, shared experts without a gate | attention with biases, feed-forward, experts, prediction blocks |
//! | `minimax-m2` | | attention with norms over the whole projection, sigmoid gating |
//! | `gpt-oss` | windows in rings of pages, sinks, YaRN, biases of outputs, routers and experts, the clamped activation | softmax over the chosen experts |
//! | `gemma4` | [`op::sandwich`]: norms behind blocks, blocks side by side, factors; norms of values, values from keys, layers with heads of their own, capped logits | windows |
//! | `qwen4exp` | [`op::streams`], [`op::ngram`], an index that chooses what attention sees, sigmoid output gates of the delta net | delta net, gated attention, experts, prediction blocks |
//!
//! # Life of a window
//!
//! A window holds rows of several sequences ([`model::window::Rows`]), and its residual rows are the whole state of a pass between two layers; on a CPU a pass of prompts is also left
//! inside a mixer, before the experts, and when half of them are computed. So two passes may be under way. On the **decode lane** goes one row of every sequence that decodes and has credit, and prompt rows as far as the window stays short: so a short prompt does not wait for a long one. On the **prompt lane** go
//! chunks of the other prompts; before every slice the schedule asks whether one more would make a stream wait for longer than two and a half of its own windows, by what slices of its kind
//! and windows have taken so far ([`engine::costs`]), and if so a decode window comes first. Guesses have a time of their own beside that, half of the slices': they take nothing from prompts. In a layer of experts the rows are grouped by expert, and each expert's weights are read once for all its
//! rows. Only rows that need logits go through the head, and what the sampler asks of them (the likeliest token, the likeliest few, everything) travels with the row.
//!
//! A sequence that decodes may bring more rows than one: **guesses** at its next tokens behind its last token. As long as what is chosen was guessed, the next row
//! is its own; rows behind a wrong guess are taken back by moving an end, since nothing of a state is advanced past what may be taken back. Guesses come from a
//! lookup of what followed the same tokens before, or from the prediction block of the model, which stands beside the trunk and reads late. Its guesses follow each other as a **chain**: what
//! is chosen of one, with the noise of its position, is the next one's token. They are chosen from the whole vocabulary or, where the head would cost
//! too much, from a shortlist: the frequent tokens, which have low ids, and those that the sequence had before. How many each sequence
//! brings, and from which, is decided by how often its guesses were right and what rows and guesses have cost, and by nothing that other sequences guess.
//!
//! What the router chooses can be recorded ([`trace`]): the CPU backend hands every layer's choices to a recorder, which packs them and gives them to a thread that writes; what
//! finds that thread behind is dropped and counted. [`replay`] runs the policies of [`residency::policy`] over such a trace. A policy is pure: it is told what a window wants in a
//! layer and answers by inserting and evicting, so the same one can be replayed and can place experts.
//!
//! Where memory holds only some of the experts, the same policy places them ([`residency::tier`]): when a layer's rows are grouped by expert, those who are missing get tickets, those who are there are computed, and the others as they
//! land. A slot is handed out with its expert in it and is taken back before the next is, so that what nobody brought cannot be computed; the sums are made in the order of rank when all are done, so when each came
//! changes no bit. Meanwhile the next layers' routers look at this layer's input, and whom they name is read while nobody waits. A read that fails ends the sequences whose rows have
//! chosen that expert, and no other ([`engine::executor::Executor::torn`]).
//!
//! On a device a slice is enqueued and the host waits for the one before it, so no more than two are ever queued there. A decode window of few rows is one **graph**: its launches are
//! recorded once for each number of rows and length of context, both rounded up, and replayed. Which rows, positions and pages it is about the kernels read from tables
//! that travel before it; rows of a table of n-grams, which the tokens name, are read from the drive and sent before it too. A step of a chain is such a graph as well, that ends by drawing tokens and
//! moving the tables one position on: so the host launches it as often as there are
//! guesses, and waits once.
//!
//! # Invariants
//!
//! - **Same tokens whatever the load.** A row's arithmetic depends on its own sequence and position only: not on the rows that share its window, the chunks of its
//!   prompt, the number of workers or the instruction set; products have the same bits on a device. [`cpu::kernels`] defines the arithmetic of products, [`cpu::math`] that of rows,
//!   [`cpu::attention`] and [`cpu::delta_net`] where sums are cut. Draws are a function of (seed, position).
//! - **No copy of the weights** on the host. The CPU reads them where the file is mapped; a device gets the same bytes. Only experts may be kept in slots instead, by `--ram`: then they are not read where they are mapped.
//! - **No CUDA to build with, none needed to run.** Driver and compiler are looked for at run time; what is not there is an answer, not a crash.
//! - **No lock and no await between schedule and emit**, and no allocation that grows with the model: buffers are made when the model is loaded. Only where experts are read from a drive does the engine thread wait for
//!   it, and where the kernel has no io_uring it hands the reads to threads through a locked queue.
//! - **No waiting without a bound**: inbox, outboxes, queue, requests in flight, heads and bodies have limits, and exceeding one is an error with a number.
//! - **No page fault for a table of n-grams**: [`table`] reads rows itself, a prompt's chunk ahead, and a row that does not come ends the sequences that need it.
//! - **No access without a key where keys are set**, except to `/health`: the router's layers are around everything, also around paths that do not exist. Keys are kept as
//!   hashes and compared in constant time; what a key is appears in no log, error or `Debug`.
//! - **No panic from a file or a client.** Files are checked when opened, requests before they enter the engine. A panic of the engine thread would be a bug; it ends the
//!   requests with an error and shows in `/health`.
//! - **No unsafe outside** memory mapping ([`gguf`]), the backends ([`cpu`], [`cuda`]) and the sampler's scans; each block says who keeps its promise.
//!
//! # Words
//!
//! **Request**: what a client sent. **Sequence**: its tokens, pages, recurrent state and sampler. **Slot**: a place for an active sequence. **Row**: one position of one sequence to be
//! computed. **Window**: the rows that go through all layers together. **Pass**: a window on its way. **Lane**: which of the two passes that may be under way. **Slice**: what a pass advances by: a layer, or a part of one.
//! **Chunk**: the prompt rows of one sequence in one window. **Page**: 64 positions of the KV cache. **Block**: of a quantised row (32 or 256 values), or of a delta net's rows (64). **Resident**: in fast memory, of an expert. **Visit**: what one window wants of one layer's experts. **Slot of a tier**: a place for one expert. **Ticket**: a transfer under way. **Ahead**: brought before anybody wants it. **Guess** or **draft**: a token assumed before it is chosen; **chain**: guesses each made from the one before; **accepted** if it is then chosen. **Hit, miss**: a row's choice that is resident, or is not. **TTFT**: time to first token. **ITL**: time between tokens.

pub mod backend;
pub mod cli;
pub mod cpu;
pub mod cuda;
pub mod engine;
pub mod estimate;
pub mod expression;
pub mod gguf;
pub mod http;
pub mod inspect;
pub mod ledger;
pub mod model;
pub mod op;
pub mod pipelines;
pub mod quant;
mod record;
pub mod replay;
pub mod residency;
pub mod sampler;
pub mod settings;
pub mod stage;
pub mod synth;
pub mod table;
pub mod template;
pub mod token;
pub mod trace;
