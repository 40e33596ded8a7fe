BEGIN TRANSACTION;
CREATE TABLE "friday_app_message_table" ("id" varchar PRIMARY KEY NOT NULL, "name" varchar NOT NULL, "role" varchar NOT NULL, "content" json NOT NULL, "timestamp" varchar NOT NULL, "reply_id" varchar NOT NULL, CONSTRAINT "FK_f38ba43816f589cb038d09c2855" FOREIGN KEY ("reply_id") REFERENCES "friday_app_reply_table" ("id") ON DELETE CASCADE ON UPDATE NO ACTION);
CREATE TABLE "friday_app_reply_table" ("id" varchar PRIMARY KEY NOT NULL, "startTimeStamp" varchar NOT NULL, "endTimeStamp" varchar, "finished" boolean NOT NULL);
CREATE TABLE "input_request_table" ("requestId" varchar PRIMARY KEY NOT NULL, "agentId" varchar NOT NULL, "agentName" varchar NOT NULL, "structuredInput" json, "run_id" varchar NOT NULL, CONSTRAINT "FK_a11e53a82c276f065bd1d2cc560" FOREIGN KEY ("run_id") REFERENCES "run_table" ("id") ON DELETE CASCADE ON UPDATE NO ACTION);
CREATE TABLE "message_table" ("id" varchar PRIMARY KEY NOT NULL, "msg" json NOT NULL, "speech" json, "run_id" varchar NOT NULL, "replyId" varchar NOT NULL, CONSTRAINT "FK_3986bdb99ba55f92d49d23d2a40" FOREIGN KEY ("run_id") REFERENCES "run_table" ("id") ON DELETE CASCADE ON UPDATE NO ACTION, CONSTRAINT "FK_769be4acc8312b8812d63341de6" FOREIGN KEY ("replyId") REFERENCES "reply_table" ("replyId") ON DELETE CASCADE ON UPDATE NO ACTION);
INSERT INTO "message_table" VALUES('VFRHKJ92sfQwaEJTniFa39','{"name":"visitor","role":"user","content":"What grows in the woods?","metadata":{},"timestamp":"2026-11-24 01:00:11.169"}',NULL,'DFfcKTduNzNejmmZJxy7HQ','ViiwExNKWYLZjvMEsN6GLC');
INSERT INTO "message_table" VALUES('noLqk6UsbLqSygNnb6JRVN','{"name":"guide","role":"assistant","content":[{"type":"tool_use","id":"c1","name":"look","input":{"place":"woods"}}],"metadata":{},"timestamp":"2026-11-24 01:00:11.776"}',NULL,'DFfcKTduNzNejmmZJxy7HQ','6ADCALMUS6rjJaK5mzchyC');
INSERT INTO "message_table" VALUES('N7frkHiSgtFy44au8xkMWi','{"name":"system","role":"system","content":[{"type":"tool_result","id":"c1","name":"look","output":[{"text":"oaks","type":"text"}]}],"metadata":{},"timestamp":"2026-11-24 01:00:11.805"}',NULL,'DFfcKTduNzNejmmZJxy7HQ','6ADCALMUS6rjJaK5mzchyC');
INSERT INTO "message_table" VALUES('bFqEJasURZhUSNLoyU9vaf','{"name":"guide","role":"assistant","content":[{"text":"Oaks grow there.","type":"text"}],"metadata":{},"timestamp":"2026-11-24 01:00:11.818"}',NULL,'DFfcKTduNzNejmmZJxy7HQ','6ADCALMUS6rjJaK5mzchyC');
INSERT INTO "message_table" VALUES('9bzSghb326UbkF2tUrUY4r','{"name":"visitor","role":"user","content":"How old do they get?","metadata":{},"timestamp":"2026-11-24 01:00:11.825"}',NULL,'DFfcKTduNzNejmmZJxy7HQ','WoouzWzT4vENsB3s7RX4Cp');
INSERT INTO "message_table" VALUES('MxT3AEQtUyMuFrfSqHzEoS','{"name":"guide","role":"assistant","content":[{"text":"Up to 1000 years.","type":"text"}],"metadata":{},"timestamp":"2026-11-24 01:00:11.839"}',NULL,'DFfcKTduNzNejmmZJxy7HQ','k7WngvnJJkZUjUibgUpFT8');
INSERT INTO "message_table" VALUES('jVHtjZmBnUYyGPyJauJEDF','{"name":"visitor","role":"user","content":"What grows in the woods?","metadata":{},"timestamp":"2026-11-24 01:00:15.958"}',NULL,'6QuBuux6ivngnVhyJpMGXE','HReCp6mXj6VFeGKE7MnXTJ');
INSERT INTO "message_table" VALUES('NpiNWRMYRGWrhp4nX7uPde','{"name":"guide","role":"assistant","content":[{"type":"tool_use","id":"c1","name":"look","input":{"place":"woods"}}],"metadata":{},"timestamp":"2026-11-24 01:00:16.572"}',NULL,'6QuBuux6ivngnVhyJpMGXE','VrU58YZtMiGAwm7v7Qxbnq');
INSERT INTO "message_table" VALUES('DRn3iTpGG7zcYA3Zy6gxwy','{"name":"system","role":"system","content":[{"type":"tool_result","id":"c1","name":"look","output":[{"text":"oaks","type":"text"}]}],"metadata":{},"timestamp":"2026-11-24 01:00:16.603"}',NULL,'6QuBuux6ivngnVhyJpMGXE','VrU58YZtMiGAwm7v7Qxbnq');
INSERT INTO "message_table" VALUES('aCszbvMXwRiEeHGbunpVCK','{"name":"guide","role":"assistant","content":[{"text":"Oaks grow there.","type":"text"}],"metadata":{},"timestamp":"2026-11-24 01:00:16.622"}',NULL,'6QuBuux6ivngnVhyJpMGXE','VrU58YZtMiGAwm7v7Qxbnq');
INSERT INTO "message_table" VALUES('GQRoUEH99NCzkhc9VvyxQM','{"name":"visitor","role":"user","content":"How old do they get?","metadata":{},"timestamp":"2026-11-24 01:00:16.637"}',NULL,'6QuBuux6ivngnVhyJpMGXE','4iv2Vw5vqV7M3mXtQusNGE');
INSERT INTO "message_table" VALUES('aQS46sv6vRLxqpbpTvrWos','{"name":"guide","role":"assistant","content":[{"text":"Up to 1000 years.","type":"text"}],"metadata":{},"timestamp":"2026-11-24 01:00:16.662"}',NULL,'6QuBuux6ivngnVhyJpMGXE','V9GGqRd7umS8Em6rmkdtP3');
CREATE TABLE "migrations" ("id" integer PRIMARY KEY AUTOINCREMENT NOT NULL, "timestamp" bigint NOT NULL, "name" varchar NOT NULL);
INSERT INTO "migrations" VALUES(1,1730000000000,'AddMessageReplyForeignKey1730000000000');
INSERT INTO "migrations" VALUES(2,1740000000000,'MigrateSpanTable1740000000000');
CREATE TABLE "reply_table" ("replyId" varchar PRIMARY KEY NOT NULL, "replyRole" varchar NOT NULL, "replyName" varchar NOT NULL, "createdAt" varchar NOT NULL, "finishedAt" varchar, "run_id" varchar NOT NULL, CONSTRAINT "FK_b9760204bfdb364a189b5501fe7" FOREIGN KEY ("run_id") REFERENCES "run_table" ("id") ON DELETE CASCADE ON UPDATE NO ACTION);
INSERT INTO "reply_table" VALUES('ViiwExNKWYLZjvMEsN6GLC','user','visitor','2026-11-24 01:00:11.169',NULL,'DFfcKTduNzNejmmZJxy7HQ');
INSERT INTO "reply_table" VALUES('6ADCALMUS6rjJaK5mzchyC','assistant','guide','2026-11-24 01:00:11.776',NULL,'DFfcKTduNzNejmmZJxy7HQ');
INSERT INTO "reply_table" VALUES('WoouzWzT4vENsB3s7RX4Cp','user','visitor','2026-11-24 01:00:11.825',NULL,'DFfcKTduNzNejmmZJxy7HQ');
INSERT INTO "reply_table" VALUES('k7WngvnJJkZUjUibgUpFT8','assistant','guide','2026-11-24 01:00:11.839',NULL,'DFfcKTduNzNejmmZJxy7HQ');
INSERT INTO "reply_table" VALUES('HReCp6mXj6VFeGKE7MnXTJ','user','visitor','2026-11-24 01:00:15.958',NULL,'6QuBuux6ivngnVhyJpMGXE');
INSERT INTO "reply_table" VALUES('VrU58YZtMiGAwm7v7Qxbnq','assistant','guide','2026-11-24 01:00:16.572',NULL,'6QuBuux6ivngnVhyJpMGXE');
INSERT INTO "reply_table" VALUES('4iv2Vw5vqV7M3mXtQusNGE','user','visitor','2026-11-24 01:00:16.637',NULL,'6QuBuux6ivngnVhyJpMGXE');
INSERT INTO "reply_table" VALUES('V9GGqRd7umS8Em6rmkdtP3','assistant','guide','2026-11-24 01:00:16.662',NULL,'6QuBuux6ivngnVhyJpMGXE');
CREATE TABLE "run_table" ("id" varchar PRIMARY KEY NOT NULL, "project" varchar NOT NULL, "name" varchar NOT NULL, "timestamp" varchar NOT NULL, "run_dir" varchar NOT NULL, "pid" integer NOT NULL, "status" varchar CHECK( "status" IN ('running','pending','done','unknown') ) NOT NULL DEFAULT ('done'));
INSERT INTO "run_table" VALUES('DFfcKTduNzNejmmZJxy7HQ','forest','with spans','2026-11-24 01:00:07.820','',6363,'done');
INSERT INTO "run_table" VALUES('6QuBuux6ivngnVhyJpMGXE','forest','without spans','2026-11-24 01:00:12.690','',6430,'done');
CREATE TABLE "span_table" ("id" varchar PRIMARY KEY NOT NULL, "traceId" varchar NOT NULL, "spanId" varchar NOT NULL, "traceState" varchar, "parentSpanId" varchar, "flags" integer, "name" varchar NOT NULL, "kind" integer NOT NULL, "startTimeUnixNano" varchar NOT NULL, "endTimeUnixNano" varchar NOT NULL, "attributes" json NOT NULL, "droppedAttributesCount" integer, "events" json, "droppedEventsCount" integer, "links" json, "droppedLinksCount" integer, "status" json NOT NULL, "resource" json NOT NULL, "scope" json NOT NULL, "statusCode" integer, "serviceName" varchar, "operationName" varchar, "instrumentationName" varchar, "instrumentationVersion" varchar, "model" varchar, "inputTokens" integer, "outputTokens" integer, "totalTokens" integer, "conversationId" varchar, "latencyNs" float NOT NULL);
INSERT INTO "span_table" VALUES('0d96291e753101d7','97755a7af719e49d8912f9cfa21d403c','0d96291e753101d7','','27b95e81c76cc00e',256,'format openai',1,'1795482011193389800','1795482011193437000','{"gen_ai":{"operation":{"name":"format"},"conversation":{"id":"DFfcKTduNzNejmmZJxy7HQ"}},"agentscope":{"format":{"target":"openai","count":2},"function":{"input":{"args":[],"kwargs":{"msgs":["Msg(id=''8HWJFnxbgx2aKSASn5Nmqf'', name=''system'', content=''Be brief.'', role=''system'', metadata={}, timestamp=''2026-11-24 01:00:11.193'', invocation_id=''None'')","Msg(id=''VFRHKJ92sfQwaEJTniFa39'', name=''visitor'', content=''What grows in the woods?'', role=''user'', metadata={}, timestamp=''2026-11-24 01:00:11.169'', invocation_id=''None'')"]}},"name":"OpenAIChatFormatter.format","output":[{"role":"system","name":"system","content":[{"type":"text","text":"Be brief."}]},{"role":"user","name":"visitor","content":[{"type":"text","text":"What grows in the woods?"}]}]}}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"telemetry":{"sdk":{"language":"python","name":"opentelemetry","version":"1.45.2"}},"service":{"instance":{"id":"9df4d939-7740-48ee-b3ed-7365b7d5c855"},"name":"unknown_service:python"}}}','{"name":"agentscope","version":"1.0.21","attributes":{}}',1,'unknown_service:python','format',NULL,NULL,NULL,NULL,NULL,NULL,'DFfcKTduNzNejmmZJxy7HQ',47104.0);
INSERT INTO "span_table" VALUES('c176d45083456120','97755a7af719e49d8912f9cfa21d403c','c176d45083456120','','27b95e81c76cc00e',256,'chat m',1,'1795482011193591000','1795482011775977700','{"gen_ai":{"operation":{"name":"chat"},"provider":{"name":"openai"},"request":{"model":"m"},"tool":{"definitions":[{"type":"function","name":"look","description":"Look what grows somewhere.","parameters":{"properties":{"place":{"description":"Where to look.","type":"string"}},"required":["place"],"type":"object"}}]},"conversation":{"id":"DFfcKTduNzNejmmZJxy7HQ"},"response":{"id":"r","finish_reasons":["stop"]},"usage":{"input_tokens":7,"output_tokens":3},"output":{"messages":[{"role":"assistant","parts":[{"type":"tool_call","id":"c1","name":"look","arguments":{"place":"woods"}}],"finish_reason":"stop"}]}},"agentscope":{"function":{"input":{"args":[[{"role":"system","name":"system","content":[{"type":"text","text":"Be brief."}]},{"role":"user","name":"visitor","content":[{"type":"text","text":"What grows in the woods?"}]}]],"kwargs":{"tools":[{"type":"function","function":{"name":"look","parameters":{"properties":{"place":{"description":"Where to look.","type":"string"}},"required":["place"],"type":"object"},"description":"Look what grows somewhere."}}],"tool_choice":null}},"name":"OpenAIChatModel.__call__","output":{"content":[{"type":"tool_use","id":"c1","name":"look","input":{"place":"woods"}}],"id":"r","created_at":"2026-11-24 01:00:11.775","type":"chat","usage":{"input_tokens":7,"output_tokens":3,"time":0.582222,"type":"chat","metadata":"CompletionUsage(completion_tokens=3, prompt_tokens=7, total_tokens=10, completion_tokens_details=None, prompt_tokens_details=None)"},"metadata":null}}}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"telemetry":{"sdk":{"language":"python","name":"opentelemetry","version":"1.45.2"}},"service":{"instance":{"id":"9df4d939-7740-48ee-b3ed-7365b7d5c855"},"name":"unknown_service:python"}}}','{"name":"agentscope","version":"1.0.21","attributes":{}}',1,'unknown_service:python','chat',NULL,NULL,'m',7,3,10,'DFfcKTduNzNejmmZJxy7HQ',582386688.0);
INSERT INTO "span_table" VALUES('805bf4dcdb19910b','97755a7af719e49d8912f9cfa21d403c','805bf4dcdb19910b','','27b95e81c76cc00e',256,'execute_tool look',1,'1795482011805556000','1795482011812102700','{"gen_ai":{"operation":{"name":"execute_tool"},"tool":{"call":{"id":"c1","arguments":{"place":"woods"},"result":"ToolResponse(content=[{''type'': ''text'', ''text'': ''oaks''}], metadata=None, stream=False, is_last=True, is_interrupted=False, id=''2026-11-24 01:00:11.805_2a5bf9'')"},"name":"look","description":"Look what grows somewhere."},"conversation":{"id":"DFfcKTduNzNejmmZJxy7HQ"}},"agentscope":{"function":{"input":{"tool_call":{"type":"tool_use","id":"c1","name":"look","input":{"place":"woods"}}},"name":"Toolkit.call_tool_function","output":"ToolResponse(content=[{''type'': ''text'', ''text'': ''oaks''}], metadata=None, stream=False, is_last=True, is_interrupted=False, id=''2026-11-24 01:00:11.805_2a5bf9'')"}}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"telemetry":{"sdk":{"language":"python","name":"opentelemetry","version":"1.45.2"}},"service":{"instance":{"id":"9df4d939-7740-48ee-b3ed-7365b7d5c855"},"name":"unknown_service:python"}}}','{"name":"agentscope","version":"1.0.21","attributes":{}}',1,'unknown_service:python','execute_tool',NULL,NULL,NULL,NULL,NULL,NULL,'DFfcKTduNzNejmmZJxy7HQ',6546688.0);
INSERT INTO "span_table" VALUES('feb87463ad49aed5','97755a7af719e49d8912f9cfa21d403c','feb87463ad49aed5','','27b95e81c76cc00e',256,'format openai',1,'1795482011812405000','1795482011812502300','{"gen_ai":{"operation":{"name":"format"},"conversation":{"id":"DFfcKTduNzNejmmZJxy7HQ"}},"agentscope":{"format":{"target":"openai","count":4},"function":{"input":{"args":[],"kwargs":{"msgs":["Msg(id=''5HSEcjvuLGc2oWTFFJ2CHd'', name=''system'', content=''Be brief.'', role=''system'', metadata={}, timestamp=''2026-11-24 01:00:11.812'', invocation_id=''None'')","Msg(id=''VFRHKJ92sfQwaEJTniFa39'', name=''visitor'', content=''What grows in the woods?'', role=''user'', metadata={}, timestamp=''2026-11-24 01:00:11.169'', invocation_id=''None'')","Msg(id=''noLqk6UsbLqSygNnb6JRVN'', name=''guide'', content=[{''type'': ''tool_use'', ''id'': ''c1'', ''name'': ''look'', ''input'': {''place'': ''woods''}}], role=''assistant'', metadata={}, timestamp=''2026-11-24 01:00:11.776'', invocation_id=''r'')","Msg(id=''N7frkHiSgtFy44au8xkMWi'', name=''system'', content=[{''type'': ''tool_result'', ''id'': ''c1'', ''name'': ''look'', ''output'': [{''type'': ''text'', ''text'': ''oaks''}]}], role=''system'', metadata={}, timestamp=''2026-11-24 01:00:11.805'', invocation_id=''None'')"]}},"name":"OpenAIChatFormatter.format","output":[{"role":"system","name":"system","content":[{"type":"text","text":"Be brief."}]},{"role":"user","name":"visitor","content":[{"type":"text","text":"What grows in the woods?"}]},{"role":"assistant","name":"guide","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"look","arguments":"{\"place\": \"woods\"}"}}]},{"role":"tool","tool_call_id":"c1","content":"oaks","name":"look"}]}}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"telemetry":{"sdk":{"language":"python","name":"opentelemetry","version":"1.45.2"}},"service":{"instance":{"id":"9df4d939-7740-48ee-b3ed-7365b7d5c855"},"name":"unknown_service:python"}}}','{"name":"agentscope","version":"1.0.21","attributes":{}}',1,'unknown_service:python','format',NULL,NULL,NULL,NULL,NULL,NULL,'DFfcKTduNzNejmmZJxy7HQ',97280.0);
INSERT INTO "span_table" VALUES('6e78347384c8d24a','97755a7af719e49d8912f9cfa21d403c','6e78347384c8d24a','','27b95e81c76cc00e',256,'chat m',1,'1795482011812636700','1795482011818680800','{"gen_ai":{"operation":{"name":"chat"},"provider":{"name":"openai"},"request":{"model":"m"},"tool":{"definitions":[{"type":"function","name":"look","description":"Look what grows somewhere.","parameters":{"properties":{"place":{"description":"Where to look.","type":"string"}},"required":["place"],"type":"object"}}]},"conversation":{"id":"DFfcKTduNzNejmmZJxy7HQ"},"response":{"id":"r","finish_reasons":["stop"]},"usage":{"input_tokens":7,"output_tokens":3},"output":{"messages":[{"role":"assistant","parts":[{"type":"text","content":"Oaks grow there."}],"finish_reason":"stop"}]}},"agentscope":{"function":{"input":{"args":[[{"role":"system","name":"system","content":[{"type":"text","text":"Be brief."}]},{"role":"user","name":"visitor","content":[{"type":"text","text":"What grows in the woods?"}]},{"role":"assistant","name":"guide","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"look","arguments":"{\"place\": \"woods\"}"}}]},{"role":"tool","tool_call_id":"c1","content":"oaks","name":"look"}]],"kwargs":{"tools":[{"type":"function","function":{"name":"look","parameters":{"properties":{"place":{"description":"Where to look.","type":"string"}},"required":["place"],"type":"object"},"description":"Look what grows somewhere."}}],"tool_choice":null}},"name":"OpenAIChatModel.__call__","output":{"content":[{"type":"text","text":"Oaks grow there."}],"id":"r","created_at":"2026-11-24 01:00:11.818","type":"chat","usage":{"input_tokens":7,"output_tokens":3,"time":0.005932,"type":"chat","metadata":"CompletionUsage(completion_tokens=3, prompt_tokens=7, total_tokens=10, completion_tokens_details=None, prompt_tokens_details=None)"},"metadata":null}}}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"telemetry":{"sdk":{"language":"python","name":"opentelemetry","version":"1.45.2"}},"service":{"instance":{"id":"9df4d939-7740-48ee-b3ed-7365b7d5c855"},"name":"unknown_service:python"}}}','{"name":"agentscope","version":"1.0.21","attributes":{}}',1,'unknown_service:python','chat',NULL,NULL,'m',7,3,10,'DFfcKTduNzNejmmZJxy7HQ',6044160.0);
INSERT INTO "span_table" VALUES('27b95e81c76cc00e','97755a7af719e49d8912f9cfa21d403c','27b95e81c76cc00e','','',256,'invoke_agent guide',1,'1795482011193061600','1795482011825825000','{"gen_ai":{"operation":{"name":"invoke_agent"},"agent":{"id":"keFr48hodekbWfphxnMwFe","name":"guide","description":"A ReAct agent implementation in AgentScope, which supports\n\n- Realtime steering\n- API-based (parallel) tool calling\n- Hooks around reasoning, acting, reply, observe and print functions\n- Structured output generation"},"input":{"messages":[{"role":"user","parts":[{"type":"text","content":"What grows in the woods?"}],"name":"visitor","finish_reason":"stop"}]},"conversation":{"id":"DFfcKTduNzNejmmZJxy7HQ"},"output":{"messages":[{"role":"assistant","parts":[{"type":"text","content":"Oaks grow there."}],"name":"guide","finish_reason":"stop"}]}},"agentscope":{"function":{"input":{"args":[],"kwargs":{"msg":"Msg(id=''VFRHKJ92sfQwaEJTniFa39'', name=''visitor'', content=''What grows in the woods?'', role=''user'', metadata={}, timestamp=''2026-11-24 01:00:11.169'', invocation_id=''None'')","structured_model":null}},"name":"ReActAgent.reply","output":"Msg(id=''bFqEJasURZhUSNLoyU9vaf'', name=''guide'', content=[{''type'': ''text'', ''text'': ''Oaks grow there.''}], role=''assistant'', metadata=None, timestamp=''2026-11-24 01:00:11.818'', invocation_id=''r'')"}}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"telemetry":{"sdk":{"language":"python","name":"opentelemetry","version":"1.45.2"}},"service":{"instance":{"id":"9df4d939-7740-48ee-b3ed-7365b7d5c855"},"name":"unknown_service:python"}}}','{"name":"agentscope","version":"1.0.21","attributes":{}}',1,'unknown_service:python','invoke_agent',NULL,NULL,NULL,NULL,NULL,NULL,'DFfcKTduNzNejmmZJxy7HQ',632763392.0);
INSERT INTO "span_table" VALUES('82d3bd5c32a6a676','75dfbe97d7418b80ab6b0da51432b36c','82d3bd5c32a6a676','','18753813f1336f18',256,'format openai',1,'1795482011834803000','1795482011834852900','{"gen_ai":{"operation":{"name":"format"},"conversation":{"id":"DFfcKTduNzNejmmZJxy7HQ"}},"agentscope":{"format":{"target":"openai","count":6},"function":{"input":{"args":[],"kwargs":{"msgs":["Msg(id=''7LpBzjouVwtBGVqNcHh84X'', name=''system'', content=''Be brief.'', role=''system'', metadata={}, timestamp=''2026-11-24 01:00:11.834'', invocation_id=''None'')","Msg(id=''VFRHKJ92sfQwaEJTniFa39'', name=''visitor'', content=''What grows in the woods?'', role=''user'', metadata={}, timestamp=''2026-11-24 01:00:11.169'', invocation_id=''None'')","Msg(id=''noLqk6UsbLqSygNnb6JRVN'', name=''guide'', content=[{''type'': ''tool_use'', ''id'': ''c1'', ''name'': ''look'', ''input'': {''place'': ''woods''}}], role=''assistant'', metadata={}, timestamp=''2026-11-24 01:00:11.776'', invocation_id=''r'')","Msg(id=''N7frkHiSgtFy44au8xkMWi'', name=''system'', content=[{''type'': ''tool_result'', ''id'': ''c1'', ''name'': ''look'', ''output'': [{''type'': ''text'', ''text'': ''oaks''}]}], role=''system'', metadata={}, timestamp=''2026-11-24 01:00:11.805'', invocation_id=''None'')","Msg(id=''bFqEJasURZhUSNLoyU9vaf'', name=''guide'', content=[{''type'': ''text'', ''text'': ''Oaks grow there.''}], role=''assistant'', metadata={}, timestamp=''2026-11-24 01:00:11.818'', invocation_id=''r'')","Msg(id=''9bzSghb326UbkF2tUrUY4r'', name=''visitor'', content=''How old do they get?'', role=''user'', metadata={}, timestamp=''2026-11-24 01:00:11.825'', invocation_id=''None'')"]}},"name":"OpenAIChatFormatter.format","output":[{"role":"system","name":"system","content":[{"type":"text","text":"Be brief."}]},{"role":"user","name":"visitor","content":[{"type":"text","text":"What grows in the woods?"}]},{"role":"assistant","name":"guide","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"look","arguments":"{\"place\": \"woods\"}"}}]},{"role":"tool","tool_call_id":"c1","content":"oaks","name":"look"},{"role":"assistant","name":"guide","content":[{"type":"text","text":"Oaks grow there."}]},{"role":"user","name":"visitor","content":[{"type":"text","text":"How old do they get?"}]}]}}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"telemetry":{"sdk":{"language":"python","name":"opentelemetry","version":"1.45.2"}},"service":{"instance":{"id":"9df4d939-7740-48ee-b3ed-7365b7d5c855"},"name":"unknown_service:python"}}}','{"name":"agentscope","version":"1.0.21","attributes":{}}',1,'unknown_service:python','format',NULL,NULL,NULL,NULL,NULL,NULL,'DFfcKTduNzNejmmZJxy7HQ',49920.0);
INSERT INTO "span_table" VALUES('66525db918ffb0b8','75dfbe97d7418b80ab6b0da51432b36c','66525db918ffb0b8','','18753813f1336f18',256,'chat m',1,'1795482011834952400','1795482011839156700','{"gen_ai":{"operation":{"name":"chat"},"provider":{"name":"openai"},"request":{"model":"m"},"tool":{"definitions":[{"type":"function","name":"look","description":"Look what grows somewhere.","parameters":{"properties":{"place":{"description":"Where to look.","type":"string"}},"required":["place"],"type":"object"}}]},"conversation":{"id":"DFfcKTduNzNejmmZJxy7HQ"},"response":{"id":"r","finish_reasons":["stop"]},"usage":{"input_tokens":7,"output_tokens":3},"output":{"messages":[{"role":"assistant","parts":[{"type":"text","content":"Up to 1000 years."}],"finish_reason":"stop"}]}},"agentscope":{"function":{"input":{"args":[[{"role":"system","name":"system","content":[{"type":"text","text":"Be brief."}]},{"role":"user","name":"visitor","content":[{"type":"text","text":"What grows in the woods?"}]},{"role":"assistant","name":"guide","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"look","arguments":"{\"place\": \"woods\"}"}}]},{"role":"tool","tool_call_id":"c1","content":"oaks","name":"look"},{"role":"assistant","name":"guide","content":[{"type":"text","text":"Oaks grow there."}]},{"role":"user","name":"visitor","content":[{"type":"text","text":"How old do they get?"}]}]],"kwargs":{"tools":[{"type":"function","function":{"name":"look","parameters":{"properties":{"place":{"description":"Where to look.","type":"string"}},"required":["place"],"type":"object"},"description":"Look what grows somewhere."}}],"tool_choice":null}},"name":"OpenAIChatModel.__call__","output":{"content":[{"type":"text","text":"Up to 1000 years."}],"id":"r","created_at":"2026-11-24 01:00:11.839","type":"chat","usage":{"input_tokens":7,"output_tokens":3,"time":0.004103,"type":"chat","metadata":"CompletionUsage(completion_tokens=3, prompt_tokens=7, total_tokens=10, completion_tokens_details=None, prompt_tokens_details=None)"},"metadata":null}}}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"telemetry":{"sdk":{"language":"python","name":"opentelemetry","version":"1.45.2"}},"service":{"instance":{"id":"9df4d939-7740-48ee-b3ed-7365b7d5c855"},"name":"unknown_service:python"}}}','{"name":"agentscope","version":"1.0.21","attributes":{}}',1,'unknown_service:python','chat',NULL,NULL,'m',7,3,10,'DFfcKTduNzNejmmZJxy7HQ',4204288.0);
INSERT INTO "span_table" VALUES('18753813f1336f18','75dfbe97d7418b80ab6b0da51432b36c','18753813f1336f18','','',256,'invoke_agent guide',1,'1795482011834615800','1795482011847996000','{"gen_ai":{"operation":{"name":"invoke_agent"},"agent":{"id":"keFr48hodekbWfphxnMwFe","name":"guide","description":"A ReAct agent implementation in AgentScope, which supports\n\n- Realtime steering\n- API-based (parallel) tool calling\n- Hooks around reasoning, acting, reply, observe and print functions\n- Structured output generation"},"input":{"messages":[{"role":"user","parts":[{"type":"text","content":"How old do they get?"}],"name":"visitor","finish_reason":"stop"}]},"conversation":{"id":"DFfcKTduNzNejmmZJxy7HQ"},"output":{"messages":[{"role":"assistant","parts":[{"type":"text","content":"Up to 1000 years."}],"name":"guide","finish_reason":"stop"}]}},"agentscope":{"function":{"input":{"args":[],"kwargs":{"msg":"Msg(id=''9bzSghb326UbkF2tUrUY4r'', name=''visitor'', content=''How old do they get?'', role=''user'', metadata={}, timestamp=''2026-11-24 01:00:11.825'', invocation_id=''None'')","structured_model":null}},"name":"ReActAgent.reply","output":"Msg(id=''MxT3AEQtUyMuFrfSqHzEoS'', name=''guide'', content=[{''type'': ''text'', ''text'': ''Up to 1000 years.''}], role=''assistant'', metadata=None, timestamp=''2026-11-24 01:00:11.839'', invocation_id=''r'')"}}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"telemetry":{"sdk":{"language":"python","name":"opentelemetry","version":"1.45.2"}},"service":{"instance":{"id":"9df4d939-7740-48ee-b3ed-7365b7d5c855"},"name":"unknown_service:python"}}}','{"name":"agentscope","version":"1.0.21","attributes":{}}',1,'unknown_service:python','invoke_agent',NULL,NULL,NULL,NULL,NULL,NULL,'DFfcKTduNzNejmmZJxy7HQ',13380096.0);
CREATE TABLE "typeorm_metadata" ("type" varchar NOT NULL, "database" varchar, "schema" varchar, "table" varchar, "name" varchar, "value" text);
INSERT INTO "typeorm_metadata" VALUES('VIEW',NULL,NULL,NULL,'run_view','SELECT COUNT(DISTINCT "run"."project") AS "totalProjects", COUNT(*) AS "totalRuns", COUNT(DISTINCT CASE 
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-1 month'') 
            THEN "run"."project" END) AS "projectsMonthAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-1 month'')
            THEN 1 END) AS "runsMonthAgo", COUNT(DISTINCT CASE  
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-7 days'')
            THEN "run"."project" END) AS "projectsWeekAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-7 days'')
            THEN 1 END) AS "runsWeekAgo", COUNT(DISTINCT CASE 
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-1 year'')
            THEN "run"."project" END) AS "projectsYearAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-1 year'')
            THEN 1 END) AS "runsYearAgo", (
            WITH RECURSIVE
            months(date) AS (
                SELECT date(''now'', ''start of month'', ''-11 months'')
                UNION ALL
                SELECT date(date, ''+1 month'')
                FROM months
                WHERE date < date(''now'', ''start of month'')
            ),
            monthly_counts AS (
                SELECT 
                    strftime(''%Y-%m'', months.date) as month,
                    COUNT(CASE 
                        WHEN strftime(''%Y-%m'', "run"."timestamp") = strftime(''%Y-%m'', months.date) 
                        THEN 1 
                    END) as count
                FROM months
                LEFT JOIN run_table run ON strftime(''%Y-%m'', "run"."timestamp") = strftime(''%Y-%m'', months.date)
                GROUP BY strftime(''%Y-%m'', months.date)
                ORDER BY month DESC
            )
            SELECT json_group_array(
                json_object(
                    ''month'', month,
                    ''count'', count
                )
            )
            FROM monthly_counts
        ) AS "monthlyRuns" FROM "run_table" "run"');
INSERT INTO "typeorm_metadata" VALUES('VIEW',NULL,NULL,NULL,'model_invocation_view','SELECT COUNT(CASE
                    WHEN ("span"."operationName" = ''chat''
                         OR "span"."operationName" = ''chat_model'')
                    THEN 1
                END) AS "totalModelInvocations", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = ''chat''
                 OR "span"."operationName" = ''chat_model'')
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "totalTokens", COUNT(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = ''chat''
                 OR "span"."operationName" = ''chat_model'')
            THEN 1
        END) AS "chatModelInvocations", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = ''chat''
                 OR "span"."operationName" = ''chat_model'')
            AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-1 month'') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensMonthAgo", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = ''chat''
                 OR "span"."operationName" = ''chat_model'')
            AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-7 days'') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensWeekAgo", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = ''chat''
                 OR "span"."operationName" = ''chat_model'')
            AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-1 year'') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensYearAgo", COUNT(CASE
                    WHEN ("span"."operationName" = ''chat''
                         OR "span"."operationName" = ''chat_model'')
                    AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-1 month'') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsMonthAgo", COUNT(CASE
                    WHEN ("span"."operationName" = ''chat''
                         OR "span"."operationName" = ''chat_model'')
                    AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-7 days'') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsWeekAgo", COUNT(CASE
                    WHEN ("span"."operationName" = ''chat''
                         OR "span"."operationName" = ''chat_model'')
                    AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-1 year'') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsYearAgo" FROM "span_table" "span" INNER JOIN "run_table" "run" ON "run"."id" = "span"."conversationId"');
INSERT INTO "typeorm_metadata" VALUES('VIEW',NULL,NULL,NULL,'friday_app_reply_view','SELECT "r"."id" AS "id", "r"."startTimeStamp" AS "startTimeStamp", "r"."endTimeStamp" AS "endTimeStamp", "r"."finished" AS "finished", "m"."name" AS "name", "m"."role" AS "role", (
                SELECT json_group_array(json(content))
                FROM (
                    SELECT content 
                    FROM friday_app_message_table
                    WHERE reply_id = r.id
                    ORDER BY timestamp ASC
                )
            ) AS "content" FROM "friday_app_reply_table" "r" LEFT JOIN "friday_app_message_table" "m" ON "m"."reply_id" = "r"."id" GROUP BY "r"."id"');
CREATE INDEX "IDX_a9c90d6dcc77a52eee70759192" ON "span_table" ("conversationId") ;
CREATE INDEX "IDX_9b03613341a28f3adc4b25bede" ON "span_table" ("totalTokens") ;
CREATE INDEX "IDX_b3cef24d908083f74e0296f019" ON "span_table" ("outputTokens") ;
CREATE INDEX "IDX_eed52eb7930ae0a16a637ae0fc" ON "span_table" ("inputTokens") ;
CREATE INDEX "IDX_1a65be629f1e8717ae936f237f" ON "span_table" ("model") ;
CREATE INDEX "IDX_6a42dec2234c4d8f03e4636a1c" ON "span_table" ("instrumentationName") ;
CREATE INDEX "IDX_50345441e37fcaa6a81f9e1f23" ON "span_table" ("operationName") ;
CREATE INDEX "IDX_597fb8acbd91e2eb45550a3a27" ON "span_table" ("serviceName") ;
CREATE INDEX "IDX_bdb32c4f77e940ff499cfb66be" ON "span_table" ("latencyNs") ;
CREATE INDEX "IDX_10fc9e48821fafed09920bbae5" ON "span_table" ("statusCode") ;
CREATE INDEX "IDX_23807b42325ccc1f324741edea" ON "span_table" ("startTimeUnixNano") ;
CREATE INDEX "IDX_ae666e33c6833fb99bba2d8c0d" ON "span_table" ("parentSpanId") ;
CREATE INDEX "IDX_fca75f17a2ac51391c28a1fe6c" ON "span_table" ("spanId") ;
CREATE INDEX "IDX_e53c038912e2db29c8ab91e23a" ON "span_table" ("traceId") ;
CREATE VIEW "run_view" AS SELECT COUNT(DISTINCT "run"."project") AS "totalProjects", COUNT(*) AS "totalRuns", COUNT(DISTINCT CASE 
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-1 month') 
            THEN "run"."project" END) AS "projectsMonthAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-1 month')
            THEN 1 END) AS "runsMonthAgo", COUNT(DISTINCT CASE  
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-7 days')
            THEN "run"."project" END) AS "projectsWeekAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-7 days')
            THEN 1 END) AS "runsWeekAgo", COUNT(DISTINCT CASE 
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-1 year')
            THEN "run"."project" END) AS "projectsYearAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-1 year')
            THEN 1 END) AS "runsYearAgo", (
            WITH RECURSIVE
            months(date) AS (
                SELECT date('now', 'start of month', '-11 months')
                UNION ALL
                SELECT date(date, '+1 month')
                FROM months
                WHERE date < date('now', 'start of month')
            ),
            monthly_counts AS (
                SELECT 
                    strftime('%Y-%m', months.date) as month,
                    COUNT(CASE 
                        WHEN strftime('%Y-%m', "run"."timestamp") = strftime('%Y-%m', months.date) 
                        THEN 1 
                    END) as count
                FROM months
                LEFT JOIN run_table run ON strftime('%Y-%m', "run"."timestamp") = strftime('%Y-%m', months.date)
                GROUP BY strftime('%Y-%m', months.date)
                ORDER BY month DESC
            )
            SELECT json_group_array(
                json_object(
                    'month', month,
                    'count', count
                )
            )
            FROM monthly_counts
        ) AS "monthlyRuns" FROM "run_table" "run";
CREATE VIEW "model_invocation_view" AS SELECT COUNT(CASE
                    WHEN ("span"."operationName" = 'chat'
                         OR "span"."operationName" = 'chat_model')
                    THEN 1
                END) AS "totalModelInvocations", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = 'chat'
                 OR "span"."operationName" = 'chat_model')
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "totalTokens", COUNT(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = 'chat'
                 OR "span"."operationName" = 'chat_model')
            THEN 1
        END) AS "chatModelInvocations", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = 'chat'
                 OR "span"."operationName" = 'chat_model')
            AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-1 month') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensMonthAgo", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = 'chat'
                 OR "span"."operationName" = 'chat_model')
            AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-7 days') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensWeekAgo", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = 'chat'
                 OR "span"."operationName" = 'chat_model')
            AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-1 year') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensYearAgo", COUNT(CASE
                    WHEN ("span"."operationName" = 'chat'
                         OR "span"."operationName" = 'chat_model')
                    AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-1 month') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsMonthAgo", COUNT(CASE
                    WHEN ("span"."operationName" = 'chat'
                         OR "span"."operationName" = 'chat_model')
                    AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-7 days') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsWeekAgo", COUNT(CASE
                    WHEN ("span"."operationName" = 'chat'
                         OR "span"."operationName" = 'chat_model')
                    AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-1 year') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsYearAgo" FROM "span_table" "span" INNER JOIN "run_table" "run" ON "run"."id" = "span"."conversationId";
CREATE VIEW "friday_app_reply_view" AS SELECT "r"."id" AS "id", "r"."startTimeStamp" AS "startTimeStamp", "r"."endTimeStamp" AS "endTimeStamp", "r"."finished" AS "finished", "m"."name" AS "name", "m"."role" AS "role", (
                SELECT json_group_array(json(content))
                FROM (
                    SELECT content 
                    FROM friday_app_message_table
                    WHERE reply_id = r.id
                    ORDER BY timestamp ASC
                )
            ) AS "content" FROM "friday_app_reply_table" "r" LEFT JOIN "friday_app_message_table" "m" ON "m"."reply_id" = "r"."id" GROUP BY "r"."id";
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('migrations',2);
COMMIT;
