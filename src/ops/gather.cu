// gather
