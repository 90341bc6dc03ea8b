// SPDX-License-Identifier: Apache-2.0
// Curves, histograms, texts, images and the graph of a training for TensorBoard
// (tf.summary.create_file_writer, torch.utils.tensorboard.SummaryWriter).
//
//   SummaryWriter summaries(strategy, "logs/run_1");
//   for (std::int64_t step = 0; step < steps; ++step) {
//     summaries.scalar("loss", train(step), step);
//   }
//   summaries.close();
//
// `tensorboard --logdir logs` shows them. docs/formats/summaries.md describes the files.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort {

class Strategy;  // strategy/strategy.h

struct SummaryWriterOptions {
  // Each scalar is also a line of JSON, {"wall_time": …, "step": …, "tag": …, "value": …}, in a
  // second file.
  bool has_jsonl = false;
  // So many summaries, of so many bytes, wait at most for the thread that writes them. Both are
  // positive; one summary that has more bytes waits alone.
  std::int64_t queue_elements_max = 1000;
  std::int64_t queue_bytes_max = 64 << 20;
  // All that waits is written when half of the queue is full, and at least this often.
  Duration flush_interval = std::chrono::minutes(2);
  // How long a call waits for the disk: for room in the queue, in flush() and close().
  Duration timeout = std::chrono::minutes(1);
  Clock* clock = nullptr;  // for waits, which outlives the writer; nullptr: the machine's
};

// Writes a file of its own into `folder`. A thread does it, so a call costs about a microsecond; if
// the disk is slower than the training, calls wait for room in the queue, and nothing is dropped.
//
// With a strategy, the first worker writes and all other workers do nothing, so all of them make
// the same calls; after MultiWorkerMirroredStrategy::rebuild() the worker that is first then goes
// on, in a file of its own. In a replica, the calls of replica 0 of its worker are written and the
// others do nothing, as in TensorFlow.
//
// Calls throw invalid_argument for a name that is empty or not in UTF-8; failed_precondition after
// close(), and inside a step that is traced, which would record a summary once; deadline_exceeded
// if there is no room in the queue after the timeout (the summary is not written then). An error of
// the disk is thrown by the next call and by each one after it: make another writer to go on.
// Thread-safe.
class COHORT_API SummaryWriter {
 public:
  // This process writes. Throws invalid_argument for options that are not positive; the errors of
  // the file system.
  explicit SummaryWriter(const std::string& folder, const SummaryWriterOptions& options = {});
  // The first worker of the strategy writes. The strategy must outlive the writer.
  SummaryWriter(Strategy& strategy, const std::string& folder,
                const SummaryWriterOptions& options = {});
  // As close(), but logs an error as a warning, unless a call has thrown it.
  ~SummaryWriter();
  SummaryWriter(const SummaryWriter&) = delete;
  SummaryWriter& operator=(const SummaryWriter&) = delete;

  // A point of the curve `name` (tf.summary.scalar). The event file has it as a float32, as
  // TensorFlow's and PyTorch's have; a line of JSON has all digits. NaN and infinity are points,
  // too; in JSON they are the texts "NaN", "Infinity" and "-Infinity".
  void scalar(std::string_view name, double value, std::int64_t step);
  // The only number of a tensor on any device, which is waited for. Throws invalid_argument for
  // another number of elements and for complex dtypes.
  void scalar(std::string_view name, const at::Tensor& value, std::int64_t step);

  // How the numbers of a tensor of any shape, dtype and device are distributed
  // (tf.summary.histogram): counts of 1551 ranges, each a tenth larger than the one before. They
  // are counted in this call, about 20 million a second. Throws invalid_argument for a tensor
  // without elements, for complex dtypes, and for NaN or infinity, which no range has.
  void histogram(std::string_view name, const at::Tensor& values, std::int64_t step);

  // A text in UTF-8, which TensorBoard shows as Markdown (tf.summary.text).
  void text(std::string_view name, std::string_view text, std::int64_t step);

  // An image: uint8 of shape [height, width, channels] with 1 (grey), 3 (RGB) or 4 (RGBA) channels,
  // none of them empty (tf.summary.image, which takes a batch). It is packed as PNG in this call.
  // Throws invalid_argument for any other tensor.
  void image(std::string_view name, const at::Tensor& pixels, std::int64_t step);

  // The operators of a traced step and the values between them (tf.summary.graph, PyTorch's
  // add_graph): `program` is step.program() of a cohort::Function or of a step of
  // Strategy::function() that was called or scheduled once; of several programs the newest is
  // written. TensorBoard shows one graph for a folder. Values of constants are not in it. Throws
  // invalid_argument for any other text.
  void graph(std::string_view program);

  // Returns when all that was passed before is in the files, where other programs can read it, or
  // throws deadline_exceeded after `timeout` (that of the options).
  void flush(std::optional<Duration> timeout = {});
  // The same, and closes the files. Further calls of it do nothing.
  void close();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohort
