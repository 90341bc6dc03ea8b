// SPDX-License-Identifier: Apache-2.0
// One pipeline that feeds several devices: element k goes to device k mod R, whichever asks first
// (tf.data's MultiDeviceIterator).
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/device.h"
#include "cohort/core/export.h"
#include "cohort/data/dataset.h"
#include "cohort/data/optional.h"
#include "cohort/input/device_memory.h"

namespace cohort {

struct MultiDeviceOptions {
  // Elements copied ahead for each device whose memory is not the host's; 0: when asked for.
  std::int64_t buffer_size = 1;
  bool fetch_to_device = true;
  // The elements of a round, one a device, belong together: an error takes the place of them all.
  // Otherwise it uses up no turn.
  bool error_takes_round = false;
  std::shared_ptr<const DeviceMemory> memory = libtorch_memory();
};

// Deals on the caller's thread: no thread to wake. Elements of a device that does not ask wait for
// it. The element behind an error goes to the device that would have got it. Used from one thread
// at a time.
class COHORT_API MultiDeviceIterator {
 public:
  // A device listed twice gets two turns.
  MultiDeviceIterator(std::unique_ptr<ElementSource> source, std::vector<Device> devices,
                      MultiDeviceOptions options = {});
  MultiDeviceIterator(const Dataset& dataset, std::vector<Device> devices,
                      MultiDeviceOptions options = {});

  std::size_t num_devices() const { return devices_.size(); }
  const ElementSpec& element_spec() const { return source_->spec(); }
  // The next of device i; nullopt once the pipeline has ended and what was dealt to it is drawn,
  // and ever after.
  std::optional<Nest> next(std::size_t i);
  Optional next_as_optional(std::size_t i);

  // The same in parts: whether there is one, without copying it; its fields or nullptr, for as long
  // as nothing else is called (an error in copying leaves it there); and taking it away.
  bool has(std::size_t i);
  const Fields* front(std::size_t i);
  void pop(std::size_t i);

  // As of the last element taken; those copied ahead are part of it.
  void save(ByteWriter& writer) const;
  void restore(ByteReader& reader);

  // What was dealt and not taken, in the order of dealing; and to begin anew with dealing such.
  std::vector<Fields> undelivered() const;
  void requeue(std::vector<Fields> elements);
  ElementSource& source() { return *source_; }

 private:
  // An element in host memory and, once it was fetched, on its device.
  struct Item {
    std::uint64_t number;  // device number mod R
    Fields host;
    Fields device = {};
    bool is_fetched = false;
  };
  bool deal_one();
  void discard_round();
  // Whether device i has an element; deals until it has.
  bool fill(std::size_t i);
  void fetch(std::size_t i, Item& item) const;
  void fetch_ahead(std::size_t i);
  std::vector<const Item*> in_order() const;

  std::unique_ptr<ElementSource> source_;
  std::vector<Device> devices_;
  MultiDeviceOptions options_;
  std::vector<bool> is_fetching_;
  std::vector<std::deque<Item>> queues_;
  std::uint64_t num_dealt_ = 0;
  bool is_at_end_ = false;
  // Found while copying ahead: thrown when its place is reached.
  std::exception_ptr error_ahead_;
};

}  // namespace cohort
