// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/internal/streams.h"

#include "cohort/core/error.h"
#include "cohort/data/element.h"

namespace cohort::input {

void StreamPosition::write(ByteWriter& writer) const {
  writer.zigzag(num);
  writer.zigzag(index);
  writer.varint(shares.size());
  for (const Share& share : shares) {
    writer.zigzag(share.num);
    writer.zigzag(share.index);
    writer.varint(share.count);
  }
  writer.varint(drawn);
  writer.text(pipeline);
  writer.blob(state);
}

StreamPosition StreamPosition::read(ByteReader& reader) {
  StreamPosition position;
  position.num = reader.zigzag();
  position.index = reader.zigzag();
  if (position.num < 1 || position.index < 0 || position.index >= position.num) {
    reader.fail("a part of a dataset");
  }
  for (std::size_t left = reader.count(3); left > 0; --left) {
    Share share{.num = reader.zigzag(), .index = reader.zigzag()};
    share.count = reader.varint();
    if (share.num < 1 || share.index < 0 || share.index >= share.num) reader.fail("a share");
    position.shares.push_back(share);
  }
  position.drawn = reader.varint();
  position.pipeline = reader.text();
  const std::span<const std::byte> state = reader.blob();
  position.state.assign(state.begin(), state.end());
  return position;
}

Streams::Streams(ElementSpec spec, OpenStream open)
    : spec_(std::move(spec)), open_(std::move(open)) {}

void Streams::set(std::vector<StreamPosition> positions) {
  streams_.clear();
  leading_.clear();
  turn_ = 0;
  for (StreamPosition& position : positions) {
    Stream& stream = streams_.emplace_back();
    stream.source = open_(position.num, position.index);
    if (!position.state.empty()) {
      COHORT_CHECK(position.pipeline == stream.source->pipeline(), ErrorCode::invalid_argument,
                   "[input.restore] expected a position in the pipeline '",
                   stream.source->pipeline(), "', got one in '", position.pipeline,
                   "'; build the pipeline as when it was saved");
      ByteReader reader(position.state, "position of a pipeline");
      stream.source->restore(reader);
      reader.expect_end();
    }
    stream.start = std::move(position);
    stream.start.state.clear();
  }
}

std::vector<StreamPosition> Streams::positions() const {
  std::vector<StreamPosition> positions;
  for (const Stream& stream : streams_) {
    StreamPosition& position = positions.emplace_back(stream.start);
    ByteWriter writer;
    stream.source->save(writer);
    position.state = writer.take();
    position.pipeline = stream.source->pipeline();
  }
  return positions;
}

void Streams::lead_with(std::vector<Fields> elements) {
  leading_.assign(std::make_move_iterator(elements.begin()),
                  std::make_move_iterator(elements.end()));
}

std::vector<Fields> Streams::leading() const { return {leading_.begin(), leading_.end()}; }

// An error counts as an element, so that all workers that share a stream count alike.
bool Streams::Stream::draw(Fields& fields) {
  try {
    if (!source->next(fields)) return false;
  } catch (...) {
    ++start.drawn;
    throw;
  }
  ++start.drawn;
  return true;
}

bool Streams::Stream::next(Fields& fields) {
  if (start.shares.empty()) return draw(fields);
  while (true) {
    bool has_element = false;
    std::exception_ptr error;
    try {
      has_element = draw(fields);
    } catch (...) {
      error = std::current_exception();
    }
    if (!error && !has_element) return false;
    bool is_own = true;
    for (Share& share : start.shares) {
      is_own = share.count++ % static_cast<std::uint64_t>(share.num) ==
               static_cast<std::uint64_t>(share.index);
      if (!is_own) break;
    }
    if (error) std::rethrow_exception(error);
    if (is_own) return true;
  }
}

bool Streams::next(Fields& fields) {
  if (!leading_.empty()) {
    fields = std::move(leading_.front());
    leading_.pop_front();
    return true;
  }
  for (std::size_t tried = 0; tried < streams_.size(); ++tried) {
    Stream& stream = streams_[turn_];
    if (!stream.has_ended && stream.next(fields)) {
      turn_ = (turn_ + 1) % streams_.size();
      return true;
    }
    stream.has_ended = true;
    turn_ = (turn_ + 1) % streams_.size();
  }
  return false;
}

}  // namespace cohort::input
